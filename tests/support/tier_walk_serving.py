"""Moves of a walk that serve requests as an engine does, with loads and fetches."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from radixtide import AllocateParams, Request
from radixtide.configs.errors import InvalidInput, InvalidRequest, OutOfSlots, SlotError
from radixtide.tree.key import RadixKey
from support.caches import state_of
from support.marks import MarkArray, key_marks
from support.tier_walk_base import LEFT
from support.tier_walk_loads import BetweenTiers, Load
from support.tier_walk_setup import TierSetup

RUNNING = 4
STATES_OF_A_RING = 2


@dataclass(eq=False)
class Live:
    """A running request.

    ``own``: its own slots, from what is cached on. ``busy``: a call is made.
    ``lean``: some of its slots have none of the window's pool behind them.

    ``states``: what was written to which state slot of it.
    """

    req: Request
    bigram: bool
    own: list[int] = field(default_factory=list)
    busy: bool = False
    lean: bool = False
    states: dict[int, MarkArray] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Input and output."""
        return len(self.req.origin_input_ids) + len(self.req.output_ids)

    @property
    def covered(self) -> int:
        """Leading tokens that have slots."""
        return self.req.cache_protected_len + len(self.own)

    @property
    def holds(self) -> bool:
        """Whether the cache knows of it."""
        return self.req.lock is not None or bool(self.own)

    def key(self) -> RadixKey:
        """Return the key of all its tokens."""
        return self.req.key(is_bigram=self.bigram)


class Serving(BetweenTiers):
    """Moves that serve requests."""

    def __init__(self, setup: TierSetup, seed: int) -> None:
        super().__init__(setup, seed)
        self.live: list[Live] = []
        self.rids = 0

    def running(self, dice: random.Random) -> Live | None:
        """Return a request that no call is made for."""
        free = [live for live in self.live if not live.busy]
        return dice.choice(free) if free else None

    def spoiled(self, live: Live) -> bool:
        """Return whether a load failed on which a request had gone on."""
        entry = state_of(self.cache).ledger.get(live.req)
        return entry is not None and entry.spoiled

    def loading(self, live: Live) -> bool:
        """Return whether something that a request stands on is on its way."""
        return any(not load.over for load in live.loads)

    # -- admission -------------------------------------------------------------------------------

    async def start(self, dice: random.Random) -> None:
        """Admit a request: fetch, match, load, in one of the ways that there are."""
        if len(self.live) >= RUNNING:
            return
        key = self.new_key(dice)
        self.rids += 1
        req = Request(
            f"r{self.rids}",
            key.token_ids.tolist(),
            extra_key=key.extra_key,
            cache_salt=key.cache_salt,
            priority=dice.randrange(3),
        )
        live = Live(req, self.setup.bigram, busy=True)
        if dice.randrange(2):
            req.req_pool_idx = self.cache.req_to_token_pool.alloc()
        self.live.append(live)
        self.say(f"start {req.rid} {key.token_ids.tolist()} row={req.req_pool_idx}")
        try:
            if not dice.randrange(3):
                await self.begin_fetch(dice, key, req)
            cow = self.has("mamba") and bool(dice.randrange(3))
            if cow and dice.randrange(2):
                await self._load_first(dice, live, key)
            else:
                await self._match(dice, live, key, cow)
        finally:
            live.busy = False

    async def _load_first(self, dice: random.Random, live: Live, key: RadixKey) -> None:
        """Load, then match: the state that is copied is then that of the whole length."""
        found = await self.look(dice, key)
        load = None
        if found is not None and found.host_hit_length:
            load = await self.begin_load(dice, found)
        if load is not None:
            await self.watch(load)
        if live in self.live:
            await self._match(dice, live, key, cow=True)
        if load is not None and not load.closed:
            await self.close_load(load)

    async def _match(self, dice: random.Random, live: Live, key: RadixKey, cow: bool) -> None:
        req = live.req
        found = await self.look(dice, key, req=req, lock=True, cow_mamba=cow)
        if found is None:
            # What a caller that left would have got is undone a little later.
            await self.rest_inside()
            assert req.lock is None
            assert not req.cache_protected_len
            return
        length = len(found.device_indices)
        if req.mamba_pool_idx is not None:
            assert length
            live.states[req.mamba_pool_idx] = key_marks(key)[length - 1 : length]
            self.met["copy"] += 1
        before = (req.lock, length)
        if not found.host_hit_length or not dice.randrange(5):
            return
        load = await self.begin_load(dice, found, req)
        if load is None:
            # As if it had never been called, a little later.
            await self.rest_inside()
            assert (req.cache_protected_len, req.lock is None) == (length, False), before
            return
        live.loads.append(load)
        self.begin("watch load", self._watch(live, load))

    async def _watch(self, live: Live, load: Load) -> None:
        await self.watch(load)
        if live not in self.live:
            return
        if load.handle.failed:
            self.met["request without its load"] += 1
            if self.spoiled(live):
                self.met["request on a failed load"] += 1
            elif not live.own and not live.busy:
                assert live.req.cache_protected_len == load.handle.length
        if not self.spoiled(live):
            await self.check_live(live)

    # -- what a request has --------------------------------------------------------------------

    async def check_live(self, live: Live) -> None:
        """Read all that a request has: what is cached, its own slots, its states."""
        if live.busy:
            # The call may be over, and what it gave back not taken off here.
            return
        req = live.req
        marks = key_marks(live.key())
        for slot, mark in live.states.items():
            self.t.marks.check("mamba", torch.tensor([slot]), mark)
        protected = req.cache_protected_len
        own = torch.tensor(live.own, dtype=torch.int64)
        # Where units are pairs, the last token with a slot has no unit yet.
        fitting = max(min(len(own) - self.setup.bigram, len(marks) - protected), 0)
        self.t.marks.check("full", own[:fitting], marks[protected : protected + fitting])
        if self.loading(live) or self.spoiled(live):
            return
        if protected:
            assert req.prefix_indices is not None
            assert len(req.prefix_indices) >= protected
            self.t.marks.check("full", req.prefix_indices[:protected], marks[:protected])
        if self.has("swa") and fitting:
            paired = (await self.cache.component_slots("swa", own[:fitting])).numpy()
            there = paired >= 0
            self.t.marks.check("swa", paired[there], marks[protected : protected + fitting][there])

    # -- work --------------------------------------------------------------------------------------

    async def extend(self, dice: random.Random) -> None:
        """Let a request have slots for its tokens, or for some of them, and write to them."""
        live = self.running(dice)
        if live is None:
            return
        req = live.req
        live.busy = True
        try:
            if not dice.randrange(3) and live.tokens < self.page * 9:
                req.output_ids.extend(1 + dice.randrange(2) for _ in range(dice.randrange(9)))
            missing = max(live.tokens - live.covered, 0)
            if missing and not dice.randrange(4):
                missing = 1 + dice.randrange(missing)
            states = 0
            pool = self.cache.config.pools.mamba
            if pool is not None and dice.randrange(6):
                states = int(req.mamba_pool_idx is None)
                states += STATES_OF_A_RING * (pool.extra_buffer and req.mamba_ping_pong is None)
            swa = dice.randrange(missing + 1) if self.has("swa") and not dice.randrange(8) else None
            if missing or states:
                await self._extend(dice, live, missing, swa, states)
        finally:
            live.busy = False

    async def _extend(
        self, dice: random.Random, live: Live, missing: int, swa: int | None, states: int
    ) -> None:
        self.say(f"extend {live.req.rid} by {missing} swa={swa} states={states}")
        params = AllocateParams(missing, swa, states, live.req)
        try:
            given: Any = await self.taken(dice, self.cache.allocate(params))
        except OutOfSlots:
            self.met["out of slots"] += 1
            return
        except InvalidInput:
            # A page that was allocated without a window's slots is to be filled without.
            assert live.lean, "refused"
            return
        live.lean = live.lean or swa is not None
        if given is LEFT:
            return
        # Where units are pairs, the last token before these had no unit until now.
        again = int(self.setup.bigram and bool(live.own))
        begin = live.covered - again
        slots = torch.tensor([*live.own[-1:][:again], *given.indices[:missing]])
        live.own.extend(given.indices[:missing].tolist())
        marks = key_marks(live.key())
        fitting = max(min(len(slots), len(marks) - begin), 0)
        if fitting:
            await self.t.write(slots[:fitting], marks[begin : begin + fitting])
        for slot in [] if given.mamba_indices is None else given.mamba_indices.tolist():
            live.states[slot] = self.stamp(1)
            self.t.marks.write("mamba", torch.tensor([slot]), live.states[slot])

    def _compute(self, dice: random.Random, live: Live) -> int | None:
        """Let the model compute a request as far as it has slots, or less far."""
        req = live.req
        least, most = req.cache_protected_len, min(live.tokens, live.covered)
        if not live.holds or most < least:
            return None
        committed = most if dice.randrange(2) else least + dice.randrange(most - least + 1)
        req.kv_committed_len = committed
        units = committed - int(self.setup.bigram)
        if self.has("mamba") and units > 0:
            marks = key_marks(live.key())
            if req.mamba_pool_idx is not None:
                self._write_state(live, req.mamba_pool_idx, marks[units - 1 : units])
            ring = req.mamba_ping_pong
            tracked = units - units % self.page
            if ring is not None and tracked > max(req.mamba_last_track_seqlen or 0, least):
                self._write_state(live, ring[req.mamba_next_track], marks[tracked - 1 : tracked])
                req.note_state(tracked)
        return committed

    def _write_state(self, live: Live, slot: int, mark: MarkArray) -> None:
        live.states[slot] = mark
        self.t.marks.write("mamba", torch.tensor([slot]), mark)

    async def chunk(self, dice: random.Random) -> None:
        """Cache what a request has computed so far."""
        live = self.running(dice)
        if live is None:
            return
        committed = self._compute(dice, live)
        if committed is None:
            return
        req = live.req
        live.busy = True
        is_insert = bool(dice.randrange(12))
        before = req.cache_protected_len
        shrinks = self.loading(live)
        self.say(f"chunk {req.rid} at {committed} insert={is_insert} from {before}")
        try:
            result = await self.cache.cache_unfinished_req(req, True, is_insert)
        except (InvalidRequest, SlotError):
            # Its load failed, so it has less than it said.
            assert shrinks, "refused"
            return
        finally:
            live.busy = False
        after = req.cache_protected_len
        if not self.spoiled(live):
            assert result.inserted_len == after
            if after > before:
                live.own = live.own[after - before :]
                self.learn(live.key(), after)
        mine = [req.mamba_pool_idx, *(req.mamba_ping_pong or [])]
        self._keep_states(live, [slot for slot in mine if slot is not None])
        await self.check_live(live)

    def _keep_states(self, live: Live, mine: list[int]) -> None:
        """Follow what became of a request's states: one may be the tree's, with another for it."""
        live.states = {slot: mark for slot, mark in live.states.items() if slot in mine}

    async def finish(self, dice: random.Random) -> None:
        """Finish a request; its tokens may come again."""
        live = self.running(dice)
        if live is None:
            return
        committed = self._compute(dice, live)
        if committed is None:
            return
        req = live.req
        live.busy = True
        key = live.key()
        shrinks = self.loading(live)
        is_insert = bool(dice.randrange(8))
        self.say(f"finish {req.rid} at {committed} insert={is_insert}")
        try:
            result = await self.cache.cache_finished_req(req, is_insert)
        except (InvalidRequest, SlotError):
            assert shrinks, "refused"
            return
        finally:
            live.busy = False
        self.learn(key, result.inserted_len)
        tokens = tuple(key.token_ids.tolist())
        self.remember((key.extra_key, key.cache_salt), tokens[: max(committed, 2)])
        await self._gone(live)

    async def abort(self, dice: random.Random) -> None:
        """Abort a request, while its load or fetch may go on."""
        live = self.running(dice)
        if live is not None:
            self.say(f"abort {live.req.rid}")
            await self.end(live)

    async def end(self, live: Live) -> None:
        """Abort a request."""
        live.busy = True
        await self.cache.abort_req(live.req)
        await self._gone(live)

    async def _gone(self, live: Live) -> None:
        self.live.remove(live)
        req = live.req
        assert req.lock is None
        assert req.prefix_indices is None
        assert req.req_pool_idx is None
        self.loads = [load for load in self.loads if load not in live.loads]
        for load in live.loads:
            load.closed = True
            await load.handle.close()
        ended = [fetch for fetch in self.fetches if fetch.req is req]
        self.fetches = [fetch for fetch in self.fetches if fetch.req is not req]
        for fetch in ended:
            assert fetch.handle._number not in self.tiers.fetches or any(
                job.number == fetch.handle._number and job.dropped for job in self.tiers.jobs
            ), "the end of its request did not end a fetch"
            await fetch.handle.close()

    async def give_back_window(self, dice: random.Random) -> None:
        """Give back what no window of a request needs any more, or the window of its lock."""
        live = self.running(dice)
        if live is None or not live.holds:
            return
        if dice.randrange(3) and self.has("swa"):
            self.say(f"release the window of {live.req.rid}")
            await self.cache.release_window(live.req, min(live.tokens, live.covered))
        elif live.req.lock is not None:
            self.say(f"give up the window of {live.req.rid}")
            await self.cache.dec_swa_lock_only(live.req.lock)
