"""Fault plans: which faults happen to which messages, copies and stored pages, as data.

A plan says nothing of when: a fault is addressed by what it happens to, how many of these pass
first, how often it happens at most, and with what probability. With the same seed and the same run
the same faults happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

import msgspec

from radixtide.configs.errors import ConfigError

FaultKind = Literal[
    "drop",
    "delay",
    "duplicate",
    "reorder",
    "stall",
    "crash_before",
    "crash_after",
    "handler_error",
    "cancel_caller",
    "corrupt",
    "kill",
    "mailbox_full",
    "copy_fail",
    "copy_slow",
    "storage_fail",
    "storage_slow",
    "storage_corrupt",
    "storage_torn",
    "host_refuse",
    "rank_skew",
]
KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)
"""Every kind of fault, in a fixed order."""

Where = Literal["request", "reply", "both"]
Operation = Literal["exists", "get", "put", "delete", "clear"]

_MESSAGES: Final = frozenset(KINDS[:12])
_COPIES: Final = frozenset({"copy_fail", "copy_slow"})
_STORAGE: Final = frozenset({"storage_fail", "storage_slow", "storage_corrupt", "storage_torn"})
_DAMAGE: Final = frozenset({"storage_corrupt", "storage_torn"})
BOTH_WAYS: Final = frozenset({"drop", "delay", "duplicate", "reorder", "corrupt", "cancel_caller"})
_LASTING: Final = frozenset(
    {"delay", "stall", "mailbox_full", "copy_slow", "storage_slow", "rank_skew"}
)
_MAY_LAST: Final = _LASTING | {"duplicate", "reorder", "cancel_caller"}

_FIELDS: Final[dict[str, frozenset[str]]] = {
    "message": _MESSAGES,
    "sender": _MESSAGES,
    "receiver": _MESSAGES,
    "where": BOTH_WAYS,
    "seconds": _MAY_LAST,
    "seconds_max": _MAY_LAST,
    "direction": _COPIES,
    "pool": _COPIES | {"host_refuse"},
    "operation": _STORAGE,
    "rank": frozenset({"rank_skew"}),
}
"""Which kinds a field means something to; the others mean something to all."""
SECONDS_MAX: Final = 3600.0
"""Seconds that a fault may last."""
RUN_SECONDS_MAX: Final = 10.0
"""Seconds that a fault may last in a simulated run: what waits for it in vain, waits longer."""
PLANS: Final = Path(__file__).parent / "plans"
"""Where the plans that come along are, a TOML file each."""


class Fault(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One fault, and what it happens to. None chooses everything.

    ``kind``: see docs/faults.md. ``message``: name of a message's type, or several of them.
    ``sender``, ``receiver``: an actor's name; ``face`` sends what callers ask. ``where``: the
    message on its way, its reply, or both; a caller is cancelled by the reply in the very turn in
    which it comes.

    ``skip``: so many chosen events pass first. ``count``: it happens so often at most.
    ``probability``: of happening to a chosen event, drawn once for each.

    ``seconds``: how long it lasts (delay, stall, mailbox_full, what is slow or late), or after what
    time it happens at the latest (reorder) or comes (the second of a duplicate, cancel_caller), of
    the loop's time, at most 3600. ``seconds_max``: then it is drawn evenly from `seconds` to this.

    ``direction``: of a copy. ``pool``: a component's name, of a copy that moves its bytes or of
    host memory that is looked for. ``operation``: of a store. ``rank``: which one is late.

    Raises ConfigError where fields contradict each other.
    """

    kind: FaultKind
    message: str | tuple[str, ...] | None = None
    sender: str | None = None
    receiver: str | None = None
    where: Where = "request"
    skip: int = 0
    count: int | None = None
    probability: float = 1.0
    seconds: float | None = None
    seconds_max: float | None = None
    direction: Literal["backup", "load"] | None = None
    pool: str | None = None
    operation: Operation | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        found = problems_of(msgspec.structs.asdict(self))
        if found:
            raise ConfigError("; ".join(f"fault {self.kind}: {line}" for line in found))

    @property
    def messages(self) -> tuple[str, ...] | None:
        """The names of the message types that are chosen; None: all."""
        return (self.message,) if isinstance(self.message, str) else self.message

    def __str__(self) -> str:
        told = [
            f"{name}={value!r}"
            for name, value in msgspec.structs.asdict(self).items()
            if name != "kind" and value != _DEFAULTS[name]
        ]
        return " ".join((self.kind, *told))


_DEFAULTS: Final[dict[str, Any]] = {
    field.name: field.default for field in msgspec.structs.fields(Fault) if not field.required
}


def problems_of(given: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a fault's values together, each with its field's name in front.

    `given`: what is said of it; their types are right.
    """
    found = []
    told = {**_DEFAULTS, **given}
    kind = told["kind"]
    if kind not in KINDS:
        return [f"kind: found {kind!r}, but needs one of {', '.join(KINDS)}"]
    for name, kinds in _FIELDS.items():
        if kind not in kinds and told[name] != _DEFAULTS[name]:
            found.append(f"{name}: means nothing to {kind}; leave it out")
    if told["message"] is not None and not told["message"]:
        found.append("message: names no message; leave it out to choose all")
    if told["skip"] < 0:
        found.append(f"skip: found {told['skip']}, but needs an integer of at least 0")
    if told["count"] is not None and told["count"] < 1:
        found.append(f"count: found {told['count']}, but needs an integer of at least 1")
    if not 0.0 < told["probability"] <= 1.0:
        found.append(
            f"probability: found {told['probability']}, but needs a number above 0, at most 1"
        )
    if kind in _MAY_LAST:
        found += _time_problems(kind, told["seconds"], told["seconds_max"])
    if kind in _DAMAGE and told["operation"] not in {None, "get", "put"}:
        found.append(
            f"operation: found {told['operation']!r}, but {kind} needs get or put, or none for both"
        )
    if told["rank"] is not None and told["rank"] < 0:
        found.append(f"rank: found {told['rank']}, but needs an integer of at least 0")
    return found


def _time_problems(kind: str, least: float | None, most: float | None) -> list[str]:
    if least is None:
        if kind in _LASTING:
            return [f"seconds: missing; {kind} needs a number of at least 0"]
        if most is not None:
            return ["seconds: missing beside seconds_max; it is the least that is drawn"]
        return []
    found = []
    if not 0.0 <= least <= SECONDS_MAX:
        found.append(f"seconds: found {least:g}, but needs a number from 0 to {SECONDS_MAX:g}")
    elif most is not None and not least <= most <= SECONDS_MAX:
        found.append(
            f"seconds_max: found {most:g}, but needs a number from {least:g} to {SECONDS_MAX:g}"
        )
    return found


LOSING: Final = frozenset({"drop", "corrupt", "crash_before", "crash_after"})
"""Kinds of which each costs a delivery."""
HOPE: Final = 0.9
"""Share of deliveries that may be lost, so that one comes through in the end."""


class FaultPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults that happen beside each other; to one event happens the first that chooses it.

    ``name``: what reports call it.
    """

    faults: tuple[Fault, ...] = ()
    name: str = "plan"

    @classmethod
    def none(cls) -> Self:
        """Return the plan of no faults."""
        return cls((), "none")

    @classmethod
    def light(cls) -> Self:
        """Return the plan that does something to about one message in 400."""
        return cls(*_preset("light"))

    @classmethod
    def heavy(cls) -> Self:
        """Return the plan that does something to more than one message in 20, of every kind."""
        return cls(*_preset("heavy"))

    @property
    def hopeless(self) -> tuple[str, ...]:
        """What a simulated run could not end with, or not in time; in words."""
        found = []
        for number, fault in enumerate(self.faults, 1):
            where = f"fault {number} ({fault.kind})"
            if fault.kind in LOSING and fault.count is None and fault.probability > HOPE:
                found.append(
                    f"{where}: what it hits never arrives, so no run could end; give it a count, "
                    f"or a probability of at most {HOPE}"
                )
            longest = max(fault.seconds or 0.0, fault.seconds_max or 0.0)
            if longest > RUN_SECONDS_MAX:
                found.append(
                    f"{where}: lasts up to {longest:g} s, longer than a run waits for anything; "
                    f"write at most {RUN_SECONDS_MAX:g}"
                )
        return tuple(found)

    @property
    def kinds(self) -> tuple[FaultKind, ...]:
        """The kinds of fault in the plan, in the order of KINDS."""
        there = {fault.kind for fault in self.faults}
        return tuple(kind for kind in KINDS if kind in there)


@cache
def _preset(name: str) -> tuple[tuple[Fault, ...], str]:
    # The reading room needs the types above; what comes along is read at first use.
    from radixtide.simulation.plan_reading import read_plan  # noqa: PLC0415

    plan = read_plan(PLANS / f"{name}.toml")
    return plan.faults, name


__all__ = (
    "KINDS",
    "PLANS",
    "Fault",
    "FaultKind",
    "FaultPlan",
    "Operation",
    "Where",
    "problems_of",
)
