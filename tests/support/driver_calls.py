"""The steps of a :class:`~support.driver.Driver`: one method a call, compared with the model."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import torch

from radixtide.components.api import (
    AllocateParams,
    EvictParams,
    EvictResult,
    InsertParams,
    MatchPrefixParams,
    MatchResult,
)
from radixtide.components.request import Request
from radixtide.configs.errors import DoubleFree, ReceiptReleased, SlotError, StaleNode
from support.driver import Driver, Live
from support.model import Match, Namespace, Page, Tokens
from support.model_calls import Held


class Steps(Driver):
    """A driver with all calls. Each ends with :meth:`settle`."""

    # -- match, insert, slots ---------------------------------------------------------

    def match(self, namespace: Namespace, tokens: Tokens, lock: bool = False) -> None:
        """Match a key, locked or not."""
        params = MatchPrefixParams(key=self.key(namespace, tokens), lock=lock)
        both = self.step(
            "match", self.cache.match_prefix(params), lambda: self.model.match(namespace, tokens)
        )
        assert both is not None
        result, found = both
        self._check_match(result, found.slots, found.reasons, namespace, tokens)
        if lock:
            assert result.receipt is not None
            self.model.lock(found.end)
            self.receipts.append((result.receipt, found.end))
        self.handles.append((result.last_device_node, found.end, self.generation))
        self.settle()

    def _check_match(
        self,
        result: MatchResult,
        slots: list[int],
        reasons: frozenset[str],
        namespace: Namespace,
        tokens: Tokens,
    ) -> None:
        assert result.device_indices.tolist() == slots
        assert result.miss_reason.value in reasons
        assert result.full_kv_hit_length == len(slots)
        assert result.miss_length == self.model.units(tokens) - len(slots)
        if self.stamps is not None:
            self.stamps.verify(result.device_indices, namespace, tokens)
        self.scribble(result.device_indices)

    def insert(
        self, namespace: Namespace, tokens: Tokens, prev: int, priority: int, extra: int = 0
    ) -> None:
        """Insert a key from loose slots; `extra` more slots than whole pages are shown."""
        end = self.model.aligned(self.model.units(tokens))
        slots = self.loose_slots()[: max(end - prev, 0) + extra]
        value = [-1] * min(prev, end) + slots
        if self.stamps is not None:
            self.stamps.write(slots, namespace, tokens, prev)
        given = torch.tensor(value, dtype=torch.int64)
        params = InsertParams(
            key=self.key(namespace, tokens), value=given, prev_prefix_len=prev, priority=priority
        )
        both = self.step(
            "insert",
            self.cache.insert(params),
            lambda: self.model.insert_loose(namespace, tokens, value, prev, priority),
        )
        self.scribble(given)
        if both is not None:
            result, done = both
            assert (result.prefix_len, result.inserted_len) == (done.matched, done.end)
            assert result.adopted == (((done.matched, end),) if done.matched < end else ())
            assert result.duplicate == (((prev, done.matched),) if prev < done.matched else ())
            self.loose = [page for page in self.loose if page in self.model.loose]
            self.handles.append((result.last_device_node, done.last, self.generation))
        self.settle()

    def insert_strange(
        self, namespace: Namespace, tokens: Tokens, position: int, strange: int
    ) -> None:
        """Insert a key of which page `position` is given by a pool page that is not loose.

        It is refused, unless the tree has that much already and the slots are not looked at.
        """
        page = self.setup.page
        slots = self.loose_slots()
        slots[position * page : (position + 1) * page] = range(strange * page, (strange + 1) * page)
        end = self.model.aligned(self.model.units(tokens))
        free = strange in self.model.free
        params = InsertParams(
            key=self.key(namespace, tokens), value=torch.tensor(slots[:end], dtype=torch.int64)
        )
        self.refuses("insert", self.cache.insert(params), DoubleFree if free else SlotError)

    @staticmethod
    def scribble(indices: torch.Tensor) -> None:
        """Overwrite indices that were handed over: the cache must keep no view of them."""
        indices.fill_(-1)

    def loose_slots(self) -> list[int]:
        """Return the slots held outside of requests, page by page, in the order of `loose`."""
        page = self.setup.page
        return [number * page + at for number in self.loose for at in range(page)]

    def allocate(self, wanted: int, live: Live | None = None) -> None:
        """Allocate, for a request or for nobody."""
        held = live.held if live is not None else None
        has_row = live is not None and live.req.req_pool_idx is not None
        both = self.step(
            "allocate",
            self.cache.allocate(
                AllocateParams(num_tokens=wanted, req=live.req if live is not None else None)
            ),
            lambda: self.model.allocate(wanted, held, has_row),
        )
        if both is not None:
            result, plan = both
            indices = result.indices.tolist()
            assert indices[: len(plan.room)] == plan.room
            assert len(indices) == len(plan.room) + plan.pages * self.setup.page
            assert result.evicted.num_tokens_evicted == plan.evicted
            self.scribble(result.indices)
            self.evicted += plan.evicted
            fresh = indices[len(plan.room) :]
            self.model.take(wanted, held, fresh)
            if held is None:
                self.loose += [slot // self.setup.page for slot in fresh[:: self.setup.page]]
        self.settle()

    def free(self, pages: list[int]) -> None:
        """Free loose pages, in the order given."""
        slots = [page * self.setup.page + at for page in pages for at in range(self.setup.page)]
        self.step(
            "free",
            self.cache.free(torch.tensor(slots, dtype=torch.int64)),
            lambda: self.model.release_loose(set(pages)),
        )
        self.loose = [page for page in self.loose if page not in pages]
        self.settle()

    def free_wrongly(self, pages: list[int]) -> None:
        """Free pages of which one is not loose; nothing may change."""
        slots = [page * self.setup.page + at for page in pages for at in range(self.setup.page)]
        wrong = next(page for page in pages if page not in self.model.loose)
        kind = DoubleFree if wrong in self.model.free else SlotError
        self.refuses("free", self.cache.free(torch.tensor(slots, dtype=torch.int64)), kind)

    def evict(self, units: int) -> None:
        """Evict; which prefixes went is compared with the rest of the content."""
        both = self.step(
            "evict",
            self.cache.evict(EvictParams(num_tokens=units)),
            lambda: self.model.evict(units),
        )
        if both is not None:
            assert both[0].num_tokens_evicted == both[1][0]
            self.evicted += both[1][0]
        self.settle()

    # -- locks, pins -------------------------------------------------------------------

    def lock(self, index: int) -> None:
        """Lock a handle that was given out at some time."""
        handle, page, generation = self.handles[index]
        if generation != self.generation or not self._lives(page):
            self.refuses("lock", self.cache.inc_lock_ref(handle), StaleNode)
            return
        both = self.step("lock", self.cache.inc_lock_ref(handle), lambda: self.model.lock(page))
        assert both is not None
        self.receipts.append((both[0], page))
        self.settle()

    def _lives(self, page: Page | None) -> bool:
        return page is None or self.model.pages.get(page.name) is page

    def unlock(self, index: int) -> None:
        """Release a receipt."""
        receipt, page = self.receipts.pop(index)
        both = self.step(
            "unlock", self.cache.dec_lock_ref(receipt), lambda: self.model.unlock(page)
        )
        assert both is not None
        assert both[0].unprotected == {"full": both[1]}
        self.released.append(receipt)
        self.settle()

    def unlock_again(self, index: int) -> None:
        """Release a receipt that was released before."""
        self.refuses("unlock", self.cache.dec_lock_ref(self.released[index]), ReceiptReleased)

    def hold_and_evict(self, namespace: Namespace, tokens: Tokens) -> None:
        """Match, hold, evict all that can go, and let go."""

        async def held() -> tuple[MatchResult, int]:
            result = await self.cache.match_prefix(MatchPrefixParams(self.key(namespace, tokens)))
            async with self.cache.hold(result):
                evicted = await self.cache.evict(EvictParams(num_tokens=self.model.size))
            return result, evicted.num_tokens_evicted

        def expect() -> tuple[list[int], frozenset[str], int]:
            found = self.model.match(namespace, tokens)
            self.model.lock(found.end)
            evicted, _ = self.model.evict(self.model.size)
            self.model.unlock(found.end)
            return found.slots, found.reasons, evicted

        both = self.step("hold", held(), expect)
        assert both is not None
        (result, evicted), (slots, reasons, expected) = both
        assert evicted == expected
        self.evicted += evicted
        self._check_match(result, slots, reasons, namespace, tokens)
        self.settle()

    def burst(self, keys: list[tuple[Namespace, Tokens]], evicted: int) -> None:
        """Match all keys at once from tasks of their own, and evict in between."""

        async def gathered() -> list[MatchResult | EvictResult]:
            calls: list[Coroutine[Any, Any, MatchResult | EvictResult]] = []
            for namespace, tokens in keys:
                calls.append(
                    self.cache.match_prefix(MatchPrefixParams(self.key(namespace, tokens)))
                )
                calls.append(self.cache.evict(EvictParams(num_tokens=evicted)))
            return await asyncio.gather(*calls)

        def expect() -> list[tuple[Match, int]]:
            return [(self.model.match(*key), self.model.evict(evicted)[0]) for key in keys]

        both = self.step("burst", gathered(), expect)
        assert both is not None
        answers, expected = both
        for at, (found, freed) in enumerate(expected):
            result, gone = answers[2 * at : 2 * at + 2]
            assert isinstance(result, MatchResult)
            assert isinstance(gone, EvictResult)
            assert result.device_indices.tolist() == found.slots
            assert result.miss_reason.value in found.reasons
            assert gone.num_tokens_evicted == freed
            self.evicted += freed
        self.settle()

    def pin(self, namespace: Namespace, tokens: Tokens, ttl: float) -> None:
        """Pin a key."""
        both = self.step(
            "pin",
            self.cache.pin(self.key(namespace, tokens), ttl),
            lambda: self.model.pin(namespace, tokens, ttl),
        )
        if both is not None:
            assert (both[0].pinned_len, both[0].budget_left) == both[1]
        self.settle()

    def unpin(self, namespace: Namespace, tokens: Tokens) -> None:
        """Let a pinned key go."""
        both = self.step(
            "unpin",
            self.cache.unpin(self.key(namespace, tokens)),
            lambda: self.model.unpin(namespace, tokens),
        )
        assert both is not None
        assert both[0] == both[1]
        self.settle()

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self.loop.now += seconds
        self.model.now = self.loop.now

    # -- requests ------------------------------------------------------------------------

    def start(
        self,
        namespace: Namespace,
        tokens: Tokens,
        *,
        priority: int = 0,
        row: bool = False,
        by_row: bool = False,
        lock: bool = True,
    ) -> Live:
        """Begin a request; without `lock` it goes on from nothing."""
        self.started += 1
        req = Request(
            rid=f"r{self.started}",
            origin_input_ids=np.array(tokens, dtype=np.int64),
            output_ids=[],
            extra_key=namespace[0],
            cache_salt=namespace[1],
            priority=priority,
        )
        if (row or by_row) and self.cache.req_to_token_pool.available:
            req.req_pool_idx = self.cache.req_to_token_pool.alloc()
            by_row = by_row and req.req_pool_idx is not None
        else:
            by_row = False
        live = Live(req, Held(namespace), by_row)
        self.live.append(live)
        if lock:
            self.rematch(live)
        return live

    def rematch(self, live: Live) -> None:
        """Match a request with a lock: refused when it holds something."""
        key = live.req.key(is_bigram=self.setup.bigram)
        tokens = live.tokens
        both = self.step(
            "start",
            self.cache.match_prefix(MatchPrefixParams(key=key, req=live.req, lock=True)),
            lambda: self.model.start(live.held, tokens, live.req.req_pool_idx is not None),
        )
        if both is not None:
            result, found = both
            self._check_match(result, found.slots, found.reasons, live.held.namespace, tokens)
            if live.by_row:
                self.loose += sorted(self.model.numbers(live.row) & self.model.loose)
                live.row, live.spare = list(found.slots), []
                self.cache.req_to_token_pool.rows[live.req.req_pool_idx][len(found.slots) :] = -1
        self.settle()

    def write_row(self, live: Live) -> None:
        """Let a request that allocates on its own put loose slots into its row."""
        assert live.req.req_pool_idx is not None
        page = self.setup.page
        length = min(len(live.tokens), self.model.max_context)
        need = length - len(live.row) - len(live.spare)
        pages = max(-(-need // page), 0)
        if length <= len(live.row) or pages > len(self.loose):
            return
        taken, self.loose = self.loose_slots()[: pages * page], self.loose[pages:]
        begin = len(live.row)
        given = live.spare + taken
        live.row += given[: length - begin]
        live.spare = given[length - begin :]
        self.cache.req_to_token_pool.rows[live.req.req_pool_idx][: len(live.row)] = torch.tensor(
            live.row, dtype=torch.int64
        )
        self._stamp(live, begin)

    def _stamp(self, live: Live, begin: int) -> None:
        if self.stamps is not None:
            own = live.row[begin:] if live.by_row else live.held.own[: live.held.used]
            self.stamps.write(own, live.held.namespace, live.tokens, begin)

    def unfinished(self, live: Live, committed: int | None, is_insert: bool = True) -> None:
        """Cache what a request has computed so far."""
        live.req.kv_committed_len = committed
        self._stamp(live, live.held.protected)
        row = live.row if live.req.req_pool_idx is not None else None
        tokens, before = live.tokens, live.held.protected
        both = self.step(
            "unfinished",
            self.cache.cache_unfinished_req(live.req, chunked=True, is_insert=is_insert),
            lambda: self.model.unfinished(
                live.held, tokens, committed, live.req.priority, row, is_insert
            ),
        )
        if both is not None:
            result, expected = both
            assert (result.inserted_len, result.prefix_len, result.freed) == expected
            if live.by_row:
                live.row[: live.held.protected] = self._protected(live)
            if not is_insert and live.held.holds:
                live.shown = self.model.committed(live.held, tokens, committed, row)
            elif result.inserted_len > before:
                live.shown = None
        self.settle()

    def finish(self, live: Live, committed: int | None, is_insert: bool = True) -> None:
        """Finish a request."""
        live.req.kv_committed_len = committed
        self._stamp(live, live.held.protected)
        row = live.row if live.req.req_pool_idx is not None else None
        tokens = live.tokens
        both = self.step(
            "finish",
            self.cache.cache_finished_req(live.req, is_insert=is_insert),
            lambda: self.model.finished(
                live.held, tokens, committed, live.req.priority, is_insert, row
            ),
        )
        if both is not None:
            result, expected = both
            assert (result.inserted_len, result.prefix_len, result.freed) == expected
            # Of a row that the scheduler wrote, slots past the committed ones stay its own.
            self.loose += sorted(self.model.numbers(live.row) & self.model.loose)
            self._forget(live)
        self.settle()

    def abort(self, live: Live) -> None:
        """Abort a request, running or done."""
        both = self.step(
            "abort", self.cache.abort_req(live.req), lambda: self.model.abort(live.held)
        )
        assert both is not None
        assert both[0].freed == both[1]
        if live in self.live:
            self.loose += sorted(self.model.numbers(live.row) & self.model.loose)
            self._forget(live)
        self.settle()

    def _forget(self, live: Live) -> None:
        self.live.remove(live)
        self.done.append(live)
        live.row = []
        req = live.req
        assert (req.lock, req.last_node, req.prefix_indices) == (None, None, None)
        assert req.req_pool_idx is None

    # -- the whole -----------------------------------------------------------------------

    def reset(self) -> None:
        """Reset the cache, or be told that something is held."""
        holders = bool(self.receipts) or any(live.held.holds for live in self.live)
        both = self.step("reset", self.cache.reset(), lambda: self.model.reset(holders))
        if both is not None:
            self.generation += 1
            self.released.clear()
        self.settle()
