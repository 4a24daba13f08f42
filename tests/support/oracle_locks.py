"""The steps of an :class:`~support.oracle_driver.OracleDriver` that lock, unlock and pin."""

from __future__ import annotations

from radixtide.configs.errors import PinRefused, ReceiptReleased, StaleNode
from support.oracle import FULL, MAMBA, SWA, Namespace, Tokens
from support.oracle_driver import Held, Live, OracleDriver


class OracleLocks(OracleDriver):
    """A driver with the calls on locks. Each ends with :meth:`settle`."""

    # -- locks and pins --------------------------------------------------------------------

    def lock(self, index: int) -> None:
        """Lock a handle that was given out at some time."""
        handle, page, generation = self.handles[index]
        oracle = self.oracle
        stale = generation != self.generation
        stale = stale or (page is not None and oracle.pages.get(page.name) is not page)
        refused = StaleNode if stale else None
        receipt = self.call("lock", self.cache.inc_lock_ref(handle), refused)
        if receipt is not None:
            path = [] if page is None else oracle.path(*page.name)
            lock = oracle.lock(path, 0 if page is None else page.depth)
            self.receipts.append(Held(receipt, lock))
        self.settle()

    def unlock(self, index: int) -> None:
        """Release a receipt."""
        held = self.receipts.pop(index)
        result = self.call("unlock", self.cache.dec_lock_ref(held.receipt))
        assert result.unprotected == self.oracle.release(held.lock)
        self.released.append(held.receipt)
        self.settle()

    def unlock_again(self, index: int) -> None:
        """Release a receipt that was released before."""
        self.call("unlock", self.cache.dec_lock_ref(self.released[index]), ReceiptReleased)
        self.settle()

    def give_up_window(self, held: Held | Live) -> None:
        """Give up window and state of a lock early; the second time nothing happens."""
        lock = held.lock
        assert lock is not None
        receipt = held.receipt if isinstance(held, Held) else held.req.lock
        result = self.call("dec swa", self.cache.dec_swa_lock_only(receipt))
        others = [name for name in (SWA, MAMBA) if self.has(name)]
        moved = dict.fromkeys(self.setup.components, 0)
        if others:
            moved = self.oracle.release(lock, *others)
            self.met["window given up"] += 1
        assert result.unprotected == moved
        self.settle()

    def pin(self, namespace: Namespace, tokens: Tokens) -> None:
        """Pin what is cached of a key that is not pinned."""
        oracle = self.oracle
        path = oracle.path(namespace, tokens)
        pinned = {page.name for lock in self.pins.values() for page in lock.pages[FULL]}
        cost = len(pinned | {page.name for page in path}) * self.setup.page
        over = cost > self.cache.config.pins.budget or not path
        refused = PinRefused if over else None
        call = self.cache.pin(self.key(namespace, tokens), 1e6)
        result = self.call("pin", call, refused)
        if result is not None:
            assert result.pinned_len == len(path) * self.setup.page
            self.pins[namespace, tokens] = oracle.lock(path, result.pinned_len)
        self.settle()

    def unpin(self, namespace: Namespace, tokens: Tokens) -> None:
        """Let a pinned key go."""
        found = self.call("unpin", self.cache.unpin(self.key(namespace, tokens)))
        lock = self.pins.pop((namespace, tokens), None)
        assert found is (lock is not None)
        if lock is not None:
            self.oracle.release(lock)
        self.settle()
