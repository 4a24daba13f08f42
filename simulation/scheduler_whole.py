"""Steps about the whole cache, and calls that are wrong on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec
import numpy as np

from radixtide.components.api import (
    AllocateParams,
    CacheStats,
    InsertParams,
    MatchPrefixParams,
    NodeHandle,
)
from radixtide.configs.errors import (
    Busy,
    ForeignReceipt,
    InvalidInput,
    InvalidRequest,
    NodeError,
    ReceiptError,
    SlotError,
)
from radixtide.simulation import script as s
from radixtide.simulation.scheduler_base import MS, Answer, Live, pick
from radixtide.simulation.scheduler_requests import Serving

Wrong = tuple[str, Callable[[], Coroutine[Any, Any, Any]], tuple[type[BaseException], ...]]
"""A call that is wrong: its name, how it is made, and what it is answered with."""

NEVER: Final = 2**40


class OverAll(Serving):
    """Steps about the whole cache."""

    async def reset(self, step: s.Reset) -> None:
        """Drop everything, if nobody holds anything."""
        if step.clean % 2:
            await self.give_all_back()
        answer = await self.call(
            "reset",
            lambda: self.cache.reset(self.waiting_s(step.wait)),
            may=(Busy,),
            waits=True,
            longer=self.setup.call_timeout_s,
        )
        if answer.ok:
            self.oracle.reset(self.rank)

    async def stats(self, step: s.Stats) -> None:
        """Read the statistics; audit and print by the calls for that."""
        answer = await self.call("stats", self._stats)
        if answer.ok:
            self.check(self.oracle.stats(answer.value, self.rank))
        if step.audit % 2:
            audit = await self.call("audit", self.cache.audit)
            if audit.ok:
                self.wrong(
                    *(f"audit: {one.clause}: {one.message}" for one in audit.value.violations)
                ) if not audit.value.ok else None
        if step.tree % 2:
            printed = await self.call("tree", lambda: self.cache.pretty_print(50))
            if printed.ok and not printed.value.startswith("tree: "):
                self.wrong(f"tree: {printed.value[:60]!r}")

    async def _stats(self) -> CacheStats:
        return await self.cache.stats()

    async def agree(self, _: s.Agree) -> None:
        """Let take effect what all ranks have seen."""
        await self.call("step", self.cache.step)

    async def pause(self, step: s.Pause) -> None:
        """Do nothing."""
        await asyncio.sleep(step.ms * MS)
        self.said(f"pause {step.ms}")

    async def restart(self, step: s.Restart) -> None:
        """Let another cache take the place of this one."""
        await self.world.restart(bool(step.hard % 2))

    # -- giving back -----------------------------------------------------------------------------

    async def give_all_back(self) -> None:
        """Give back all that this scheduler has."""
        while self.live:
            await self.end(self.live[0])
        while self.loads:
            await self.close_load_of(self.loads[0])
        while self.fetches:
            await self.close_handle("close fetch", self.fetches.pop().handle)
        while self.locks:
            await self.release(self.locks[0])
        while self.pins:
            await self.drop_pin(self.pins.pop())
        while self.loose_states:
            await self.give_back([self.loose_states.pop()], "mamba")
        while self.loose:
            await self.give_back(self.loose.pop(), "full")

    # -- what is wrong -----------------------------------------------------------------------------

    async def hostile(self, step: s.Hostile) -> None:
        """Make a call that is wrong; nothing may change by it."""
        makers = (
            self._far_slots,
            self._locked_slots,
            self._slots_of_request,
            self._part_of_page,
            self._released,
            self._foreign,
            self._unknown,
            self._lock_of_request,
            self._match_again,
            self._finished,
            self._too_long,
            self._insert_foreign,
        )
        wrong = makers[step.kind % len(makers)](step.which)
        if wrong is None:
            return
        what, make, errors = wrong
        before = self._picture()
        answer: Answer = await self.call(f"hostile {what}", make, may=errors)
        if answer.ok:
            self.wrong(f"hostile {what}: was answered with {answer.value!r}")
        elif before is not None and not answer.doubt and isinstance(answer.error, errors):
            after = self._picture()
            if after is not None and after != before:
                self.wrong(f"hostile {what}: was refused, and changed {before} to {after}")

    def _picture(self) -> Any:
        """Return what a refusal must not change; None where others change it meanwhile."""
        cache = self.cache
        if not self.alone or self.world.faulty or not self.world.is_open or cache.transfers:
            return None
        state = cache._state  # a look past the mailboxes
        sizes = [str(one.sizes()) for one in cache._components]
        return [*sizes, len(state.tree), len(state.receipts), len(state.ledger)]

    def _free(self, what: str, slots: Any) -> Wrong:
        mine = self.slots_of(slots)
        return what, lambda: self.cache.free(mine), (SlotError,)

    def _far_slots(self, which: int) -> Wrong:
        first = self.setup.pages * self.page + which * self.page
        return self._free("far slots", np.arange(first, first + self.page))

    def _locked_slots(self, which: int) -> Wrong | None:
        held = pick([one for one in self.locks if one.length], which)
        if held is None or not len(held.slots):
            return None
        return self._free("slots under a lock", self.whole(held.slots[:1]))

    def _slots_of_request(self, which: int) -> Wrong | None:
        live = pick([one for one in self.live if one.own and not one.by_row], which)
        return None if live is None else self._free("a request's", self.whole(live.own[:1]))

    def _part_of_page(self, which: int) -> Wrong | None:
        slots = pick(self.loose, which)
        if slots is None or self.page == 1:
            return None
        return self._free("part of a page", slots[:-1])

    def _released(self, which: int) -> Wrong | None:
        receipt = pick(self.released, which)
        if receipt is None:
            return None
        return "released", lambda: self.cache.dec_lock_ref(receipt), (ReceiptError,)

    def _foreign(self, which: int) -> Wrong | None:
        held = pick(self.locks, which)
        if held is None:
            return None
        other = msgspec.structs.replace(held.receipt, cache=held.receipt.cache + NEVER)
        return "foreign", lambda: self.cache.dec_lock_ref(other), (ForeignReceipt,)

    def _unknown(self, which: int) -> Wrong:
        node = NodeHandle(NEVER + which, 0, 0)
        return "unknown node", lambda: self.cache.inc_lock_ref(node), (NodeError,)

    def _locked_live(self, which: int) -> Live | None:
        return pick([one for one in self.live if one.req.lock is not None], which)

    def _lock_of_request(self, which: int) -> Wrong | None:
        live = self._locked_live(which)
        if live is None:
            return None
        receipt = live.req.lock
        return "a request's lock", lambda: self.cache.dec_lock_ref(receipt), (ReceiptError,)

    def _match_again(self, which: int) -> Wrong | None:
        live = self._locked_live(which)
        if live is None:
            return None
        params = MatchPrefixParams(key=live.key(), req=live.req, lock=True)
        return "match again", lambda: self.cache.match_prefix(params), (InvalidRequest,)

    def _finished(self, which: int) -> Wrong | None:
        done = pick(self.done, which)
        if done is None:
            return None
        return "finish again", lambda: self.cache.cache_finished_req(done.req), (InvalidRequest,)

    def _too_long(self, which: int) -> Wrong | None:
        live = pick([one for one in self.live if one.req.req_pool_idx is not None], which)
        if live is None:
            return None
        params = AllocateParams(5 * self.setup.pages * self.page, req=live.req)
        return "a row too short", lambda: self.cache.allocate(params), (InvalidRequest,)

    def _insert_foreign(self, which: int) -> Wrong | None:
        live = pick(
            [one for one in self.live if len(one.own) >= self.page and not one.by_row], which
        )
        if live is None:
            return None
        key = self.key_of(3, (9,) * (self.page + int(self.setup.bigram)))
        slots = self.whole(live.own[:1])
        params = InsertParams(key, slots)
        return "insert of a request's", lambda: self.cache.insert(params), (SlotError, InvalidInput)


__all__ = ("OverAll",)
