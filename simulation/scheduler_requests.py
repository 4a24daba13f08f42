"""Steps that serve requests as an engine does: admit, decode, chunk, finish, abort, retract."""

from __future__ import annotations

from typing import Any, Final

from radixtide.components.api import AllocateParams, MatchResult
from radixtide.components.request import Request
from radixtide.configs.errors import (
    ActorFailed,
    InvalidInput,
    InvalidRequest,
    OutOfSlots,
    SlotError,
)
from radixtide.simulation import script as s
from radixtide.simulation.scheduler_base import (
    AFFECTED,
    MS,
    NAMESPACES,
    PAGES_MAX,
    TRIES,
    Answer,
    Live,
    pick,
)
from radixtide.simulation.scheduler_rows import WithRows

RUNNING: Final = 3
STATELESS: Final = 5
"""One request in so many goes without states of its own."""
RING: Final = 2


class Serving(WithRows):
    """Steps that serve requests."""

    # -- admission ----------------------------------------------------------------------------

    async def start(self, step: s.Start) -> None:
        """Admit a request, in one of the ways that there are."""
        if len(self.live) >= RUNNING:
            return
        known = self.sunk() if step.fetch % 2 and step.prompt.again else ()
        space, tokens = self.prompt(step.prompt, known)
        if step.waiting % 2 and self.waiting:
            space, tokens = self.waiting.pop(0)
        self.started += 1
        extra, salt = NAMESPACES[space]
        rid = f"{self.name}r{self.started}"
        req = Request(rid, list(tokens), [], extra, salt, step.priority % 3)
        live = Live(req, space, self.setup.bigram, stateful=bool(self.started % STATELESS))
        rows = self.cache.req_to_token_pool
        if step.row % 3 and rows.available:
            req.req_pool_idx = rows.alloc()
            live.by_row = step.row % 3 == 2
            live.stateful = live.stateful and not live.by_row
        self.live.append(live)
        key = live.key()
        if step.fetch % 2:
            await self.begin_fetch(key, 0 if step.fetch % 4 == 1 else 2, live=live)
        if live not in self.live:
            return
        cow = self.has("mamba") and bool(step.cow % 2)
        found = await self._admitted(live, step, cow)
        if found is None:
            return
        if self.setup.host and found.host_hit_length and step.load % 2:
            answer = await self.load_for(live, found, step.patience, waits=step.load % 4 == 1)
            if isinstance(answer.error, ActorFailed) or (not answer.ok and self.started % 2):
                await self.end(live, again=True)
                return
            # Where it was not answered otherwise, the request has what its match gave it.
        if live in self.live and not step.lazy % 2:
            await self._extend(live, live.tokens, None, step.patience)

    async def _admitted(self, live: Live, step: s.Start, cow: bool) -> MatchResult | None:
        """Match for a request; None when it is given up, in one of the ways that are safe."""
        req = live.req
        for _ in range(TRIES):
            error: list[BaseException | None] = []
            found = await self.look_up(
                live.key(), step.patience, error, req=req, lock=True, cow_mamba=cow
            )
            if found is not None:
                return found
            if isinstance(error[0], ActorFailed) or self.started % 3 == 0:
                # It leaves open how far the call came.
                break
            if self.started % 3 == 1 and req.req_pool_idx is None:
                # A match that is not answered has no effect, so there is nothing to abort.
                await self._gone(live)
                return None
            await self.stand_up()
        await self.end(live, again=True)
        return None

    # -- work -----------------------------------------------------------------------------------

    async def extend(self, step: s.Extend) -> None:
        """Decode some tokens, and have slots for what has none."""
        live = pick(self.live, step.which)
        if live is None:
            return
        room = PAGES_MAX * self.page + self.page - live.tokens
        live.req.output_ids.extend([1 + step.letter % 2] * max(min(step.tokens, room), 0))
        missing = max(live.tokens - live.covered, 0)
        part = min(missing, step.part) if step.part else missing
        window = self.window_part(part, step.window)
        await self._extend(live, part, window, step.patience)

    def _states_wanted(self, live: Live) -> int:
        if not (self.has("mamba") and live.stateful):
            return 0
        req = live.req
        wanted = int(req.mamba_pool_idx is None)
        return wanted + RING * (self.setup.extra_buffer and req.mamba_ping_pong is None)

    async def _extend(self, live: Live, most: int, window: int | None, patience: int = 0) -> None:
        """Allocate for up to `most` tokens that have no slots yet, and compute these."""
        req = live.req
        wanted = min(max(live.tokens - live.covered, 0), most)
        states = self._states_wanted(live)
        if not wanted and not states:
            return
        if live.by_row:
            count = await self.extend_row(live, wanted, patience)
            if count:
                self._write_own(live, count)
            return
        if window is not None:
            window = min(window, wanted)
        params = AllocateParams(wanted, window, states, req)
        before = self.oracle.snapshot(self.rank)
        answer = await self.call(
            "extend",
            lambda: self.cache.allocate(params, timeout=self.timeout(patience)),
            may=(OutOfSlots, InvalidInput) if live.lean else (OutOfSlots,),
            patience=patience,
            waits=self.setup.write_policy == "write_back",
        )
        if isinstance(answer.error, ActorFailed):
            # It leaves open how far the call came.
            await self.end(live, again=True)
            return
        if not answer.ok:
            live.states_unsettled = live.states_unsettled or (answer.doubt and states > 0)
            return
        given = answer.value
        oracle = self.oracle
        live.lean = live.lean or window is not None
        self.check(oracle.allocated(params, given, before, self.rank))
        slots = self.slots_of(given.indices)
        self.check(oracle.granted(self.whole(slots), "full", req.rid, self.rank))
        if given.mamba_indices is not None and len(given.mamba_indices):
            mine = self.slots_of(given.mamba_indices)
            self.check(oracle.granted(mine, "mamba", req.rid, self.rank))
        live.own.extend(slots[:wanted].tolist())
        self._write_own(live, wanted)

    def _write_own(self, live: Live, count: int) -> None:
        """Let the model compute the last `count` of a request's own slots."""
        # Where units are pairs, the last token before these had no unit until now.
        fresh = self.slots_of(live.own[-count - int(live.bigram) :])
        if count and len(fresh):
            self.oracle.wrote(live.key(), live.covered - len(fresh), fresh, self.rank)

    def _states_of(self, live: Live) -> list[int]:
        req = live.req
        mine = [req.mamba_pool_idx, *(req.mamba_ping_pong or [])]
        return [slot for slot in mine if slot is not None]

    def _compute(self, live: Live, short: int) -> int | None:
        """Let the model be as far as a request has slots, but for `short` tokens."""
        req = live.req
        least, most = req.cache_protected_len, min(live.tokens, live.covered)
        if not live.holds or most < least:
            return None
        committed = max(most - short, least)
        req.kv_committed_len = committed
        units = committed - int(live.bigram)
        if self.has("mamba") and units > 0:
            key, oracle = live.key(), self.oracle
            if req.mamba_pool_idx is not None:
                oracle.wrote_state(key, units, req.mamba_pool_idx, self.rank)
            ring = req.mamba_ping_pong
            tracked = units - units % self.page
            if ring is not None and tracked > max(req.mamba_last_track_seqlen or 0, least):
                oracle.wrote_state(key, tracked, ring[req.mamba_next_track], self.rank)
                req.note_state(tracked)
        return committed

    def _give(self, live: Live, committed: int, ends: bool) -> None:
        """Tell the oracle what a call may take over, or give back."""
        req, oracle = live.req, self.oracle
        oracle.leaving(req, self.rank, ends=ends)
        begin = req.cache_protected_len
        whole = ends and not live.by_row
        mine = self.slots_of(live.own if whole else live.own[: max(committed - begin, 0)])
        if len(mine):
            oracle.gone(self.whole(mine), "full", self.rank)
        states = self._states_of(live)
        if states:
            oracle.gone(self.slots_of(states), "mamba", self.rank)

    def _has(self, live: Live) -> None:
        """Tell the oracle what a request has, after a call that may have taken some of it."""
        oracle = self.oracle
        rid = self.name if live.by_row else live.req.rid
        if live.own:
            self.check(oracle.granted(self.whole(live.own), "full", rid, self.rank))
        states = [] if live.states_unsettled else self._states_of(live)
        if states:
            self.check(oracle.granted(self.slots_of(states), "mamba", rid, self.rank))

    def shaky(self, live: Live) -> bool:
        """Return whether what a request stands on may be less than it knows."""
        return live.unsettled or any(not load.over or load.handle.failed for load in live.loads)

    async def chunk(self, step: s.Chunk) -> None:
        """Cache what a request has computed so far."""
        live = pick(self.live, step.which)
        committed = None if live is None else self._compute(live, step.short)
        if live is None or committed is None:
            return
        req = live.req
        insert = bool(step.insert % 2)
        protected = req.cache_protected_len
        # Where units are pairs, what is protected needs a token more.
        key = live.key(max(committed, protected + live.bigram))
        own = live.own[: max(committed - protected, 0)]
        shaky = self.shaky(live)
        if insert:
            self.oracle.asked(key, key.aligned(self.page))
        self._give(live, committed, ends=False)
        ready = self._late(step.ready, insert, live, live.key(), protected, own)
        before = self.world.oracle.snapshot(self.rank)
        answer = await self.call(
            "chunk",
            lambda: self.cache.cache_unfinished_req(
                req, True, insert, ready=ready, timeout=self.timeout(step.patience)
            ),
            may=(InvalidRequest, SlotError) if shaky else (),
            waits=bool(live.loads),
            patience=step.patience,
        )
        if ready is not None and answer.ok:
            await ready
        if not answer.ok:
            await self._not_answered(live, answer, key)
            return
        after = req.cache_protected_len
        if after > protected:
            live.own = live.own[after - protected :]
            self.world.remember(self.rank, live.space, self._tokens(live)[:after])
        self._has(live)
        self.check(
            self.oracle.cached("chunk", req, key, answer.value, before, self.rank, protected)
        )
        if not self.shaky(live):
            self.check(self.oracle.request(req, live.key(), self.slots_of(live.own), self.rank))

    def _late(
        self, ready: int, insert: bool, live: Live, key: Any, first: int, own: list[int]
    ) -> Any:
        """Let the device write a request's own slots later; return what tells that it has."""
        if not (ready and insert and self.alone and self.setup.host and own) or live.loads:
            return None
        slots = self.slots_of(own)
        self.world.scribble(self.rank, "full", slots)
        return self.world.later(
            ready * MS, lambda: self.world.oracle.wrote(key, first, slots, self.rank)
        )

    async def _not_answered(self, live: Live, answer: Answer, key: Any) -> None:
        """Do what a caller must whose call did not end well: go on, or abort."""
        if answer.error is not None and not answer.doubt:
            # Refused, and nothing has changed.
            self._has(live)
            if isinstance(answer.error, AFFECTED):
                return
        self.oracle.lost("request", key, self.rank)
        if live.by_row and answer.doubt:
            self.doubt_rest(live)
        await self.end(live, again=True)

    @staticmethod
    def _tokens(live: Live) -> tuple[int, ...]:
        return (*live.req.origin_input_ids, *live.req.output_ids)

    async def finish(self, step: s.Finish) -> None:
        """Finish a request; its tokens may come again."""
        live = pick(self.live, step.which)
        committed = None if live is None else self._compute(live, step.short)
        if live is None or committed is None:
            return
        req = live.req
        insert = bool(step.insert % 2)
        key = live.key(max(committed, req.cache_protected_len + live.bigram))
        tokens = self._tokens(live)[: max(committed, 2)]
        shaky = self.shaky(live)
        if insert:
            self.oracle.asked(key, key.aligned(self.page))
        self._give(live, committed, ends=True)
        protected = req.cache_protected_len
        before = self.oracle.snapshot(self.rank)
        answer = await self.call(
            "finish",
            lambda: self.cache.cache_finished_req(req, insert, timeout=self.timeout(step.patience)),
            may=(InvalidRequest, SlotError) if shaky else (),
            waits=bool(live.loads),
            patience=step.patience,
        )
        if not answer.ok:
            await self._not_answered(live, answer, key)
            return
        self.world.remember(self.rank, live.space, tokens)
        if live.by_row:
            self.keep_rest(live, max(committed - protected, 0))
        self.check(self.oracle.cached("finish", req, key, answer.value, before, self.rank))
        await self._gone(live)

    # -- ends -------------------------------------------------------------------------------------

    async def abort(self, step: s.Abort) -> None:
        """Abort a request, or one that is done already."""
        live = pick(self.live, step.which)
        if live is not None:
            await self.end(live, after=step.after)
            if step.again % 2:
                await self._abort_again(live)
        elif self.done:
            await self._abort_again(self.done[-1])

    async def _abort_again(self, live: Live) -> None:
        answer = await self.call("abort again", lambda: self.cache.abort_req(live.req))
        if answer.ok and answer.value.freed:
            self.wrong(f"abort again: freed {answer.value.freed} slots")

    async def retract(self, step: s.Retract) -> None:
        """Take a request back to the queue."""
        live = pick(self.live, step.which)
        if live is not None:
            await self.end(live, again=True)

    async def end(self, live: Live, *, again: bool = False, after: int = 0) -> None:
        """Abort a request, as often as it takes; `again`: it comes back later."""
        self._give(live, live.req.cache_protected_len if live.by_row else live.covered, ends=True)
        key = live.key()
        fence = None
        if after and self.alone and self.setup.host:
            fence = self.world.later(after * MS, lambda: None)
        before = self.oracle.snapshot(self.rank)
        answer = await self.persist(
            "abort", lambda: self.cache.abort_req(live.req, after=fence), longer=0.0
        )
        if fence is not None:
            await fence
        if again:
            self.waiting = [*self.waiting[-3:], (live.space, self._tokens(live))]
        if answer.ok:
            self.check(self.oracle.cached("abort", live.req, key, answer.value, before, self.rank))
        if live.by_row:
            self.keep_rest(live, 0)
        await self._gone(live)

    async def _gone(self, live: Live) -> None:
        if live in self.live:
            self.live.remove(live)
        self.done = [*self.done[-3:], live]
        for load in live.loads:
            load.over = True
            await self.close_handle("close load of a request", load.handle)
        for fetch in live.fetches:
            if fetch in self.fetches:
                self.fetches.remove(fetch)
            await self.close_handle("close fetch of a request", fetch.handle)
        live.loads.clear()
        live.fetches.clear()

    async def release_window(self, step: s.ReleaseWindow) -> None:
        """Give back the window slots that a request has left behind."""
        live = pick(self.live, step.which)
        if live is None or not live.holds:
            return
        length = min(live.tokens, live.covered)
        answer = await self.call(
            "release window",
            lambda: self.cache.release_window(live.req, length),
            # Its row has no slots any more where a load has failed meanwhile.
            may=(InvalidRequest, SlotError) if self.shaky(live) else (),
            waits=True,
        )
        if answer.ok and answer.value and not self.has("swa"):
            self.wrong(f"release window: freed {answer.value} slots of no pool")
        if answer.ok and live in self.live and not self.shaky(live):
            own = self.slots_of(live.own)
            self.check(self.oracle.request(live.req, live.key(), own, self.rank))


__all__ = ("Serving",)
