"""The steps of an :class:`~support.oracle_driver.OracleDriver` that serve requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from radixtide.components.api import AllocateParams, CacheReqResult, MatchPrefixParams
from radixtide.components.request import Request
from support.oracle import FULL, MAMBA, SWA, Insertion, Name, Namespace, Page, Pair, Tokens
from support.oracle_driver import Live
from support.oracle_recency import Use
from support.oracle_steps import OracleSteps
from support.oracle_view import slots_of


class OracleRequests(OracleSteps):
    """A driver with all calls."""

    # -- admission ----------------------------------------------------------------------

    def start(
        self,
        namespace: Namespace,
        tokens: Tokens,
        *,
        row: bool = False,
        by_row: bool = False,
        lock: bool = True,
        cow: bool = False,
    ) -> Live:
        """Begin a request with a match; `by_row`: its row is written by its scheduler."""
        self.started += 1
        req = Request(
            rid=f"r{self.started}",
            origin_input_ids=np.array(tokens, dtype=np.int64),
            output_ids=[],
            extra_key=namespace[0],
            cache_salt=namespace[1],
        )
        if (row or by_row) and self.cache.req_to_token_pool.available:
            req.req_pool_idx = self.cache.req_to_token_pool.alloc()
        live = Live(req, namespace, by_row and req.req_pool_idx is not None)
        self.live.append(live)
        self.rematch(live, lock=lock, cow=cow)
        return live

    def rematch(self, live: Live, *, lock: bool, cow: bool) -> None:
        """Match for a request that holds no lock; with `cow` it gets a copy of the state."""
        key = live.req.key(is_bigram=self.setup.bigram)
        path, expected = self.expected_match(live.namespace, live.tokens)
        private = cow and self.has(MAMBA) and expected > 0
        reasons = None
        evicts = private and live.working is None and not self.free_pages[MAMBA]
        if evicts and not self._state_to_evict({path[expected // self.setup.page - 1].name}):
            expected, private, evicts, reasons = 0, False, False, {"no_slot"}
            self.met["no slot for a copy"] += 1
        params = MatchPrefixParams(key=key, req=live.req, lock=lock, cow_mamba=cow)
        result = self.call(f"start {live.req.rid}", self.cache.match_prefix(params))
        # Whatever is evicted for the copy, it is not what matched.
        covered = self.oracle.lock(path, expected)
        if evicts:
            spared = [path[expected // self.setup.page - 1].name]
            losses = self.take_losses(MAMBA, target=1, spared=spared)
            assert losses.freed[MAMBA] == 1, f"evicted {losses.freed} for one state"
            self.met["evicted for a copy"] += 1
        self.check_match(result, live.namespace, live.tokens, path, expected, reasons)
        if private:
            slot = live.req.mamba_pool_idx
            assert slot is not None
            if live.working is None:
                self.take(MAMBA, [slot])
                live.working = slot
            self.contents.verify(slot, self.oracle.name(live.namespace, live.tokens, expected))
            self.met["copy"] += 1
        if lock:
            live.lock, live.protected = covered, expected
        else:
            self.oracle.release(covered)
        self.settle()

    def _state_to_evict(self, spared: set[Name]) -> bool:
        """Return whether a state can be evicted that is on none of the pages of `spared`."""
        return any(
            page.state is not None and not page.locks[MAMBA] and page.name not in spared
            for page in self.oracle.pages.values()
        )

    # -- slots ----------------------------------------------------------------------------

    def extend(self, live: Live, tokens: int, swa_tokens: int | None, states: int) -> None:
        """Allocate for a request: what its last page has left comes first."""
        page = self.setup.page
        swa_tokens = None if swa_tokens is None else min(swa_tokens, tokens)
        room = min(len(live.own) * page - live.used, tokens)
        fresh = tokens - room
        count = -(-fresh // page)
        with_swa = fresh if swa_tokens is None else min(swa_tokens, fresh)
        first = (fresh - with_swa) // page if with_swa else count
        wanted = {FULL: count * page, SWA: (count - first) * page, MAMBA: states}
        wanted = {name: slots for name, slots in wanted.items() if self.has(name) and slots}
        free = {name: self.sizes(name)["free"] for name in wanted}
        refused = self.shortage(wanted)
        params = AllocateParams(
            num_tokens=tokens, swa_num_tokens=swa_tokens, mamba_num=states, req=live.req
        )
        result = self.call(f"allocate {live.req.rid}", self.cache.allocate(params), refused)
        if result is not None:
            short = {name: slots - free[name] for name, slots in wanted.items()}
            self.take_evicted(result.evicted, short)
            if room:
                last = live.own[-1].full * page
                begin = last + page - (len(live.own) * page - live.used)
                assert result.indices[:room].tolist() == list(range(begin, begin + room))
            live.own += self.taken_pairs(result, room, count, first if self.has(SWA) else count)
            live.used += tokens
            taken = self.taken_states(result, states)
            if taken and live.working is None:
                live.working = taken.pop(0)
            live.tracked += taken
        self.settle()

    def write_row(self, live: Live, pairs: list[Pair]) -> None:
        """Let a scheduler give loose pages to a request, after what is left of its last page."""
        page, row = self.setup.page, live.req.req_pool_idx
        assert live.by_row
        assert row is not None
        self.loose = [pair for pair in self.loose if pair not in pairs]
        live.own += pairs
        live.used = min(len(live.own) * page, max(len(live.tokens) - live.protected, 0))
        slots = slots_of((pair.full for pair in live.own), page)[: live.used]
        rows = self.cache.req_to_token_pool.rows
        rows[row][live.protected : live.covered] = torch.tensor(slots, dtype=torch.int64)
        self.transcript.append(f"write_row {live.req.rid} up to {live.covered}")
        self.settle()

    def track(self, live: Live, length: int) -> None:
        """Let the model write its state at `length` into the slot whose turn it is."""
        slot = live.tracked[live.turn]
        self.contents.write(slot, self.oracle.name(live.namespace, live.tokens, length))
        live.req.note_state(length)
        live.previous, live.last, live.turn = live.last, length, 1 - live.turn
        self.transcript.append(f"note_state {live.req.rid} {length}")

    def release_window(self, live: Live, length: int) -> None:
        """Give back the SWA of a request's own tokens that no window needs at `length`."""
        page, oracle = self.setup.page, self.oracle
        frontier = oracle.aligned(max(length - oracle.lookahead - oracle.reach, 0))
        frontier = min(frontier, live.protected + oracle.aligned(live.used))
        if frontier <= max(live.swa_evicted, live.protected):
            # Nothing of its own is behind the window yet.
            frontier = live.swa_evicted
        freed = self.call("release_window", self.cache.release_window(live.req, length))
        gone = []
        for at, pair in enumerate(live.own, 1):
            if live.protected + at * page <= frontier and pair.swa is not None:
                gone.append(pair.swa)
                pair.swa = None
        assert freed == len(gone) * page
        self.met["window released"] += bool(gone)
        self.give_back([], gone)
        live.swa_evicted = frontier
        self.settle()

    # -- caching ------------------------------------------------------------------------------

    def prefix(self, live: Live, end: int) -> Tokens:
        """Return the tokens of a request's first `end` units."""
        return live.tokens[: end + self.oracle.lookahead]

    def insertable(self, live: Live, committed: int) -> int:
        """Return the length that is inserted: cut to the newest state that is worth it."""
        if self.has(MAMBA) and self.setup.extra_buffer:
            for tracked in (live.last, live.previous):
                fits = tracked is not None and live.protected < tracked <= committed
                if tracked is not None and fits and not tracked % self.setup.grid:
                    return tracked
        return self.oracle.aligned(self.oracle.units(live.tokens[:committed]))

    def insert_own(self, live: Live, end: int) -> Insertion:
        """Give a request's own pages up to `end` to the oracle."""
        count = (end - live.protected) // self.setup.page
        given, live.own = live.own[:count], live.own[count:]
        live.used = max(live.used - count * self.setup.page, 0)
        done = self.oracle.insert(
            live.namespace, live.tokens, given, live.protected, end, live.swa_evicted
        )
        self.recency.use(Use(live.namespace, live.tokens, end, done.swa_adopted))
        self.give_back(done.freed_full, done.freed_swa)
        return done

    def state_at(self, live: Live, end: int) -> int | None:
        """Return the slot of a request's state that is valid at `end`."""
        if not self.setup.extra_buffer:
            return live.working
        if len(live.tracked) == 2 and end % self.setup.grid == 0:
            if live.last == end:
                return live.tracked[1 - live.turn]
            if live.previous == end:
                return live.tracked[live.turn]
        return None

    def write_working(self, live: Live, committed: int) -> None:
        """Let the working state be the one after all that is computed."""
        if live.working is not None:
            name = self.oracle.name(live.namespace, live.tokens, committed)
            self.contents.write(live.working, name)

    def unfinished(self, live: Live, committed: int, is_insert: bool = True) -> None:
        """Cache what a request has computed so far."""
        live.req.kv_committed_len = committed
        self.write_working(live, committed)
        base, skipped = live.protected, self._skipped()
        call = self.cache.cache_unfinished_req(live.req, chunked=True, is_insert=is_insert)
        result = self.call(f"unfinished {live.req.rid} at {committed}", call)
        end = self.insertable(live, committed) if is_insert else base
        if end <= base:
            assert (result.inserted_len, result.prefix_len, result.freed) == (base, base, 0)
            self.settle()
            return
        slot = self.state_at(live, end) if self.has(MAMBA) else None
        path = self.oracle.path(live.namespace, self.prefix(live, end))
        existed = bool(path) and path[-1].depth == end and path[-1].state is not None
        done = self.insert_own(live, end)
        assert (result.inserted_len, result.prefix_len) == (end, done.matched)
        self.met["chunk repaired a window"] += any(
            one[0] < done.matched for one in done.swa_adopted
        )
        self.met["chunk was there in part"] += 0 < done.matched - base < end - base
        path = self.oracle.path(live.namespace, self.prefix(live, end))
        lock = self.oracle.lock(path, end)
        donated = False
        if slot is not None and not existed:
            # What the insert runs along stays, also that in which it ends.
            spared = {path[-1].name, *self._along(live, base, done.matched)}
            donated = self._donate(live, path[-1], slot, spared)
            assert self._skipped() - skipped == int(not donated)
        self._check_adopted(result, done, end if donated else None)
        if live.lock is not None:
            self.oracle.release(live.lock)
        live.lock, live.protected = lock, end
        assert result.freed == len(done.freed_full) * self.setup.page
        if self.setup.cap:
            self.take_capped(live.namespace, self.prefix(live, end))
        self.settle()

    def _check_adopted(self, result: CacheReqResult, done: Insertion, state_at: int | None) -> None:
        adopted = {name: parts for name, parts in result.component_adopted.items() if parts}
        expected = {SWA: done.swa_adopted} if done.swa_adopted else {}
        if state_at is not None:
            expected[MAMBA] = ((state_at - 1, state_at),)
        assert adopted == expected

    def _along(self, live: Live, base: int, matched: int) -> Iterator[Name]:
        """Yield the last page of each node that shares ``[base, matched)`` with a request."""
        for node in self.seen:
            namespace, tokens = node.name
            shared = self.oracle.lookahead + min(node.end, matched)
            overlaps = base < node.end and node.start < matched
            if overlaps and (namespace, tokens[:shared]) == (live.namespace, live.tokens[:shared]):
                yield node.name

    def _skipped(self) -> int:
        counters: dict[str, int] = self.run(self.cache.stats()).counters
        return counters.get("donations_skipped", 0)

    def _donate(self, live: Live, page: Page, slot: int, spared: set[Name]) -> bool:
        """Attach a running request's state, for which it gets a fresh slot; or there is none.

        `spared`: pages of which no state may be evicted for it.
        """
        if not self.free_pages[MAMBA]:
            real = next(node for node in self.look() if node.name == page.name)
            if real.state is None:
                assert not self._state_to_evict(spared), "a state could have been evicted"
                self.met["donation skipped"] += 1
                return False
            target = None if self.setup.cap else 1
            losses = self.take_losses(MAMBA, target=target, spared=spared)
            self.met["evicted for a donation"] += 1
            # The cap on states a path may have taken more.
            assert losses.freed[MAMBA] == 1 or self.setup.cap, f"evicted {losses.freed} for one"
            assert not spared & {one.name for one in [*losses.gone, *losses.states]}
        real = next(node for node in self.look() if node.name == page.name)
        assert real.state is not None, f"no state at {page.depth}, though there was a slot"
        if self.setup.extra_buffer:
            (fresh,) = set(live.req.mamba_ping_pong or []) - set(live.tracked)
            live.tracked[live.tracked.index(slot)] = fresh
            live.last = live.previous = None
            page.state = slot
        else:
            # Forked: whichever of the two the tree has got, the request has the other.
            assert live.req.mamba_pool_idx is not None
            fresh = next(one for one in (real.state, live.req.mamba_pool_idx) if one != slot)
            page.state, live.working = real.state, live.req.mamba_pool_idx
            assert {page.state, live.working} == {slot, fresh}
        self.take(MAMBA, [fresh])
        self.met["state of a running request"] += 1
        return True

    def finish(self, live: Live, committed: int, is_insert: bool = True) -> None:
        """Finish a request: what is not inserted is free again."""
        live.req.kv_committed_len = committed
        self.write_working(live, committed)
        base = live.protected
        call = self.cache.cache_finished_req(live.req, is_insert=is_insert)
        result = self.call(f"finish {live.req.rid} at {committed}", call)
        end = self.insertable(live, committed) if is_insert else base
        matched, freed = base, 0
        if end > base:
            slot = self.state_at(live, end) if self.has(MAMBA) else None
            done = self.insert_own(live, end)
            matched, freed = done.matched, len(done.freed_full) * self.setup.page
            last = self.oracle.path(live.namespace, self.prefix(live, end))[-1]
            donated = slot is not None and last.state is None
            self._check_adopted(result, done, end if donated else None)
            if donated:
                self.met["state of a finished request"] += 1
                last.state = slot
                live.tracked = [one for one in live.tracked if one != slot]
                live.working = None if live.working == slot else live.working
        if live.by_row:
            # What is committed is given to the cache, the pages of a tail whole.
            count = -(-(committed - max(end, base)) // self.setup.page)
            tail, live.own = live.own[:count], live.own[count:]
            self._free_pairs(tail)
            freed += count * self.setup.page
        freed += self._let_go(live)
        assert (result.inserted_len, result.prefix_len) == (max(end, base), matched)
        assert result.freed == freed
        if self.setup.cap and end > base:
            self.take_capped(live.namespace, self.prefix(live, end))
        self.settle()

    def abort(self, live: Live) -> None:
        """Give up a request."""
        result = self.call(f"abort {live.req.rid}", self.cache.abort_req(live.req))
        assert result.freed == self._let_go(live)
        self.settle()

    def _let_go(self, live: Live) -> int:
        """Free all that a request holds; return the Full slots."""
        if live.lock is not None:
            self.oracle.release(live.lock)
        freed = 0
        if live.by_row:
            self.loose += live.own
        else:
            self._free_pairs(live.own)
            freed = len(live.own) * self.setup.page
        if self.has(MAMBA):
            self.free_pages[MAMBA].update(live.states)
        self.live.remove(live)
        req: Any = live.req
        assert (req.lock, req.last_node, req.prefix_indices) == (None, None, None)
        assert (req.req_pool_idx, req.cache_protected_len) == (None, 0)
        if self.has(SWA):
            assert req.swa_evicted_seqlen == 0
        if self.has(MAMBA):
            assert (req.mamba_pool_idx, req.mamba_ping_pong) == (None, None)
        return freed

    def _free_pairs(self, pairs: list[Pair]) -> None:
        swa = [pair.swa for pair in pairs if pair.swa is not None]
        self.give_back([pair.full for pair in pairs], swa)

    # -- the whole ------------------------------------------------------------------------------

    def reset(self) -> None:
        """Reset a cache of which nothing is held."""
        self.call("reset", self.cache.reset())
        self.oracle.pages.clear()
        self.pins.clear()
        self.free_pages = {name: set(range(count)) for name, count in self.setup.counts.items()}
        self.generation += 1
        self.released.clear()
        self.settle()
