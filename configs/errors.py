"""Every error that Radixtide raises, with whose fault it is.

All derive from :class:`RadixtideError`. A message says what was wrong, where, and what to do. The
errors live in the lowest room so that every other room can raise them.

Three families matter to a caller:

* **refused** (:class:`InvalidInput` and its children, :class:`NodeError`, :class:`ReceiptError`,
  :class:`SlotError`): the call changed nothing; correct it and call again.
* **for now** (:class:`OutOfSlots`, :class:`MailboxFull`, :class:`Busy`): nothing changed; the same
  call may succeed later.
* **unanswered** (:class:`CallTimeout`, :class:`ActorFailed`): see the docstring of each for what
  became of the call.
"""

from __future__ import annotations

from collections.abc import Mapping


class RadixtideError(Exception):
    """Base class of every error of this library."""


class ConfigError(RadixtideError):
    """A configuration file or object is wrong; names the key's path and what would be right."""


class TraceError(RadixtideError):
    """A request trace can not be read; names file and line."""


class InvalidInput(RadixtideError, ValueError):
    """An argument is unusable (wrong shape, dtype, device, range); nothing was changed."""


class InvalidKey(InvalidInput):
    """A key is malformed: negative or oversized token ids, wrong unit kind, not page aligned."""


class InvalidRequest(InvalidInput):
    """A request's fields contradict each other or the cache's ledger; nothing was changed."""


class NodeError(RadixtideError):
    """A node handle can not be used."""


class UnknownNode(NodeError):
    """The handle was never given out by this cache."""


class StaleNode(NodeError):
    """The handle's node is gone, or its device slots changed, since it was given out."""


class ReceiptError(RadixtideError):
    """A lock receipt can not be used; no count was changed."""


class ReceiptReleased(ReceiptError):
    """The receipt was released before."""


class ForeignReceipt(ReceiptError):
    """The receipt was issued by another cache, or before a reset, or was altered."""


class SlotError(InvalidInput):
    """Slots given to the cache are not the caller's to give: free, cached, repeated or foreign."""


class DoubleFree(SlotError):
    """A slot is freed that is already free."""


class OutOfSlots(RadixtideError):
    """An allocation can not be met even by evicting all that may be evicted.

    ``pools`` tells per component what was wanted and what the pool had: keys ``wanted``, ``free``,
    ``evictable``, ``protected``, ``held`` and ``size``, all in slots of that pool.
    """

    def __init__(self, pools: Mapping[str, Mapping[str, int]]) -> None:
        self.pools = {name: dict(numbers) for name, numbers in pools.items()}
        parts = (
            f"{name}: wanted {n['wanted']}, free {n['free']}, evictable {n['evictable']}, "
            f"protected {n['protected']}, held {n['held']} of {n['size']}"
            for name, n in self.pools.items()
        )
        super().__init__(
            "not enough slots ("
            + "; ".join(parts)
            + "); wait for requests to finish, retract one, or enlarge the pool"
        )


class PinRefused(RadixtideError):
    """A pin would exceed the pin budget, or its key is not cached on the device."""


class Busy(RadixtideError):
    """A reset or flush is refused because something is still held; names the holders."""


class ActorError(RadixtideError):
    """The actor system could not answer a call."""


class MailboxFull(ActorError):
    """The receiver's mailbox is at its limit; the message was never handled, retry is safe."""


class ActorStopped(ActorError):
    """The cache is closed (or not open yet); the message was never handled."""


class CacheClosed(ActorStopped):
    """The cache was used outside its ``async with`` block."""


class ActorFailed(ActorError):
    """An actor crashed more often than its restart limit allows, or a message kept killing it."""


class CallTimeout(ActorError, TimeoutError):
    """No answer by the deadline.

    A call that takes (match, lock, allocate) had no effect, or its effect is undone as soon as it
    happens. A call that gives (insert, free, finish, unlock, abort) is still carried out: what was
    given now belongs to the cache, and must not be given again.
    """


class LoadFailed(RadixtideError):
    """A load from the host tier did not bring its data to the device; says why.

    What lies in the slots of the load must not be used. The request goes on with the part of its
    prefix that is on the device, and computes the rest.
    """


class InvariantError(RadixtideError):
    """A bug of this library: an invariant does not hold. ``violations`` lists what was found."""

    def __init__(self, violations: list[str]) -> None:
        self.violations = list(violations)
        head = "; ".join(self.violations[:3])
        more = f" (and {len(self.violations) - 3} more)" if len(self.violations) > 3 else ""
        super().__init__(f"{len(self.violations)} invariant(s) violated: {head}{more}")


def how_to_install(extra: str) -> str:
    """Return what to do where the packages of `extra` are missing, to end a message with."""
    return (
        f"install Radixtide with its extra {extra!r} "
        f"(in a checkout: pip install -c constraints.txt -e '.[{extra}]')"
    )
