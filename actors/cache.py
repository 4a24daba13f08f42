"""The cache's face: the public coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import anyio
import msgspec
import torch

from radixtide.actors import calls
from radixtide.actors.hold import Hold
from radixtide.actors.tier_face import TieredCache
from radixtide.components.api import (
    CARRIER,
    AllocateParams,
    AllocateResult,
    AuditReport,
    CacheReqResult,
    CacheStats,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    InsertParams,
    InsertResult,
    LockReceipt,
    MatchPrefixParams,
    MatchResult,
    NodeHandle,
    PinResult,
    PoolStats,
    SlotInput,
)
from radixtide.components.checks import (
    as_count,
    as_seconds,
    as_slots,
    check_allocate,
    check_evict,
    check_handle,
    check_insert,
    check_match,
    check_receipt,
    check_request,
    expect,
)
from radixtide.components.outcomes import NO_SIZES
from radixtide.components.picture import TreePicture
from radixtide.components.request import Request
from radixtide.configs.errors import Busy
from radixtide.tree.key import RadixKey


class UnifiedRadixCache(TieredCache):
    """A prefix cache: one radix tree, one actor a component, one coordinator.

    Use it as an async context manager; it belongs to the loop it was entered on. Every call takes
    ``timeout`` in seconds (default ``limits.call_timeout_s``), after which it raises CallTimeout.

    Calls that take (match_prefix, allocate, inc_lock_ref) are undone when they are cancelled or
    time out. Calls that give (insert, free, dec_lock_ref, cache_finished_req, cache_unfinished_req,
    abort_req) are carried out once made. A typed error of either kind has changed nothing, but for
    evictions made on its behalf; ActorFailed leaves open how far the call came.
    docs/guarantees.md states all of this, and each of its sentences has a test.

    A call checks its arguments and returns a coroutine; so a wrong type raises at the call, all
    else where it is awaited.

    Letters in costs: K key length in units, D nodes on the path, E nodes evicted.
    """

    # -- match ----------------------------------------------------------------------

    def match_prefix(
        self, params: MatchPrefixParams, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, MatchResult]:
        """Find the longest cached prefix of a key, and say why it is not longer.

        Touches the path; splits a node where the match ends inside one. With ``lock`` the match is
        locked in the same step. Cost O(K + D).

        Raises:
            InvalidKey: the key is empty, too long, or of the wrong unit kind.
            InvalidRequest: the request is in another namespace, or holds a lock or slots already.
        """
        if params.__class__ is not MatchPrefixParams or params.key.__class__ is not RadixKey:
            check_match(params)
        elif params.req is not None:
            check_request(params.req)
        return self._take(params, timeout)

    def device_indices(
        self,
        node: NodeHandle,
        component: str = CARRIER,
        *,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, torch.Tensor]:
        """Return the device slots from the root to the end of `node`, a fresh int64 tensor.

        Those that `component` has there; tombstones have none. Cost O(depth). Raises StaleNode,
        UnknownNode, or InvalidRequest when the cache has no such component.
        """
        check_handle(node)
        expect(component, str, "component")
        return self._take(calls.DeviceIndices(node, component), timeout)

    # -- insert ---------------------------------------------------------------------

    def insert(
        self, params: InsertParams, *, ready: Any = None, timeout: float | None = None
    ) -> Coroutine[Any, Any, InsertResult]:
        """Give the slots of a key to the tree; what was cached already is freed.

        `ready`: when the state is written (a CUDA event, a future, None: now); a backup of it waits
        for that. Cost O(K + D).

        Raises:
            InvalidKey: the key is empty, too long, or of the wrong unit kind.
            InvalidInput: too few slots, wrong dtype or device, or a bad ``prev_prefix_len``.
            SlotError: slots that the caller does not hold, or that are not whole pages.
        """
        params = check_insert(params)
        if ready is not None:
            params = msgspec.structs.replace(params, ready=ready)
        cell = self._coordinator
        if cell is not None and not cell.idle:
            # It is handled later: what the caller writes to its array until then must not count.
            params = msgspec.structs.replace(params, value=as_slots(params.value).copy())
        return self._give(params, timeout)

    # -- slots ----------------------------------------------------------------------

    def allocate(
        self, params: AllocateParams, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, AllocateResult]:
        """Take slots, in whole pages, evicting as needed; all or nothing.

        Cost amortised O(log N) a node evicted.

        Raises:
            OutOfSlots: not even evicting everything evictable would do.
            InvalidRequest: the request's row is too short.
        """
        return self._take(check_allocate(params), timeout)

    async def free(
        self,
        indices: SlotInput,
        component: str = CARRIER,
        *,
        after: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Give back slots that were allocated without a request, in whole pages. Cost O(len).

        `after`: when nothing reads or writes them any more (a CUDA event, a future, None: now); a
        load into slots that were freed waits for that.

        Raises:
            DoubleFree: a slot is free already.
            SlotError: a slot is the tree's, a request's, out of range, or not in a whole page.
        """
        slots = as_slots(indices)
        expect(component, str, "component")
        await self._give(calls.Free(slots, component, after), timeout)

    def evict(
        self, params: EvictParams, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, EvictResult]:
        """Free at least that many slots, in policy order, where they are evictable.

        Cost O(E log E + slots freed), whatever the size of the tree.
        """
        return self._give(check_evict(params), timeout)

    # -- locks ----------------------------------------------------------------------

    def inc_lock_ref(
        self, node: NodeHandle, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, LockReceipt]:
        """Protect the path to `node` from eviction. Cost O(nodes newly protected).

        Raises:
            StaleNode: the node is gone or changed; nothing is locked.
            UnknownNode: this cache never gave out that handle.
        """
        if node.__class__ is not NodeHandle or node.id.__class__ is not int:
            check_handle(node)
        return self._take(calls.IncLockRef(node), timeout)

    def dec_lock_ref(
        self, receipt: LockReceipt, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, DecLockRefResult]:
        """Undo one lock. Cost O(nodes no longer protected).

        Raises:
            ReceiptReleased: it was released before.
            ForeignReceipt: of another cache, from before a reset, or altered.
            ReceiptError: it is a request's, and is released with the request.
        """
        if receipt.__class__ is not LockReceipt or receipt.id.__class__ is not int:
            check_receipt(receipt)
        return self._give(calls.DecLockRef(receipt), timeout)

    def dec_swa_lock_only(
        self, receipt: LockReceipt, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, DecLockRefResult]:
        """Give up the window of a lock, and its lock on a state: decoding has moved past them.

        What is left of the receipt is released by ``dec_lock_ref``, or with its request, as ever.
        A second call changes nothing. Cost O(nodes in the window).

        Raises:
            ReceiptReleased, ForeignReceipt: as ``dec_lock_ref``.
        """
        check_receipt(receipt)
        return self._give(calls.DecWindowLock(receipt), timeout)

    def hold(self, match: MatchResult) -> Hold:
        """Lock a match for the length of an ``async with`` block; yields the receipt.

        The release at the block's end is posted without waiting, so a cancelled scope releases too.
        """
        expect(match, MatchResult, "match")
        return Hold(self, match.last_device_node)

    def post_release(self, receipt: LockReceipt) -> None:
        """Release a receipt without waiting; an error is logged. For ``hold``."""
        self.post(calls.DecLockRef(receipt))

    # -- requests -------------------------------------------------------------------

    def cache_unfinished_req(
        self,
        req: Request,
        chunked: bool = False,
        is_insert: bool = True,
        *,
        ready: Any = None,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, CacheReqResult]:
        """Cache what a running request has computed so far, and go on.

        Inserts the committed tokens (whole pages), writes the tree's slots into the request's row,
        frees duplicates, moves the lock, and sets ``prefix_indices``, ``cache_protected_len``,
        ``last_node`` and ``lock``. ``chunked`` marks a chunk of a prefill; it changes nothing in
        what is cached. With ``is_insert`` false the tree is left alone and the request keeps its
        slots. `ready`: as in :meth:`insert`. Cost O(new tokens), not O(all tokens).

        Raises:
            InvalidRequest: lengths contradict the ledger, or nothing is known of the request.
            SlotError: the row names slots that are not the request's.
        """
        check_request(req)
        return self._give(calls.CacheUnfinishedReq(req, is_insert, ready), timeout)

    def cache_finished_req(
        self,
        req: Request,
        is_insert: bool = True,
        *,
        ready: Any = None,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, CacheReqResult]:
        """Cache what a finished request has computed, and free the rest of what it holds.

        `ready`: as in :meth:`insert`. Frees duplicates, the unaligned tail, surplus slots and the
        row; releases the lock. Cost O(K).

        Raises:
            InvalidRequest: as above; also when the request is finished already.
            SlotError: as above.
        """
        check_request(req)
        return self._give(calls.CacheFinishedReq(req, is_insert, ready), timeout)

    def abort_req(
        self, req: Request, *, after: Any = None, timeout: float | None = None
    ) -> Coroutine[Any, Any, CacheReqResult]:
        """Give up a request at any stage: free all it owns, once. Idempotent. Cost O(K).

        `after`: as in :meth:`free`.
        """
        check_request(req)
        return self._give(calls.AbortReq(req, after), timeout)

    def release_window(
        self, req: Request, length: int, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, int]:
        """Give back the sliding-window slots that a running request of `length` tokens has left.

        Frees, in whole pages, those of the request's own tokens that no window of a token to come
        covers, sets ``swa_evicted_seqlen``, and returns how many slots that freed. Call it as often
        as the request decodes; without a component that has a window it does nothing.
        Cost O(slots freed), and O(own parts).
        """
        check_request(req)
        return self._give(calls.ReleaseWindow(req, as_count(length, "length")), timeout)

    async def component_slots(
        self, component: str, indices: SlotInput, *, timeout: float | None = None
    ) -> torch.Tensor:
        """Return the slots that `component` has for the tokens of Full slots `indices`.

        An int64 tensor of the same length, -1 where there is none. Cost O(len).

        Raises:
            SlotError: a slot is out of range.
            InvalidRequest: the cache has no such component, or its slots are not bound to Full's.
        """
        expect(component, str, "component")
        slots = as_slots(indices)
        result: torch.Tensor = await self._take(calls.ComponentSlots(component, slots), timeout)
        return result

    # -- pins -----------------------------------------------------------------------

    def pin(
        self, key: RadixKey, ttl: float, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, PinResult]:
        """Keep the cached part of `key` from eviction for `ttl` seconds, within ``pins.budget``.

        Pinning a pinned key renews its time, and pins more where more of it is cached by now. A pin
        whose time is over is let go when somebody needs its room: at the next ``pin``, ``evict`` or
        ``allocate`` that runs short. Cost O(K + D).

        Raises:
            PinRefused: over the budget, or nothing of the key is cached.
        """
        expect(key, RadixKey, "key")
        return self._give(calls.PinKey(key, as_seconds(ttl, "ttl")), timeout)

    def unpin(self, key: RadixKey, *, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Let a pinned key go; return whether it was pinned."""
        expect(key, RadixKey, "key")
        return self._give(calls.UnpinKey(key), timeout)

    # -- the whole cache --------------------------------------------------------------

    async def reset(self, timeout: float = 0.0) -> None:
        """Drop all that is cached, and start a new generation of handles.

        Waits up to `timeout` seconds until nothing is held, then refuses.

        Raises:
            Busy: receipts, requests or slots are still held (named), or a reset runs already.
        """
        if self._resetting:
            raise Busy("another reset is waiting; await that one")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + as_seconds(timeout, "timeout")
        self._resetting = True
        try:
            while True:
                self._given = anyio.Event()
                try:
                    await self._give(calls.Reset(), None)
                    return
                except Busy:
                    left = deadline - loop.time()
                    if left <= 0:
                        raise
                    if self.transfers:
                        # The end of a transfer is no call of anybody's.
                        with anyio.move_on_after(left):
                            await self.drain(left + 1.0)
                        continue
                    with anyio.move_on_after(left) as waiting:
                        await self._given.wait()
                    if waiting.cancelled_caught:
                        # One last try: it tells who holds what now.
                        deadline = loop.time()
        finally:
            self._resetting = False
            self._given = None

    async def stats(self) -> CacheStats:
        """Return sizes, actors and counters. Never waits for an actor. Cost O(components)."""
        system = self._open_system()
        state = self._state
        pools = {}
        counters = state.counters.as_dict()
        if state.tiers is not None:
            counters.update(msgspec.structs.asdict(state.tiers.counters))
        if self._tiering is not None:
            counters.update(self._tiering.counters())
        storage = self.storage_jobs
        actors = system.statistics()
        for component in self._components:
            if actors[component.name].degraded:
                pools[component.name] = {"device": PoolStats(**msgspec.structs.asdict(NO_SIZES))}
                continue
            counters.update(component.counters())
            tiers = {"device": component.sizes(), "host": component.host_sizes()}
            pools[component.name] = {
                tier: PoolStats(**msgspec.structs.asdict(sizes))
                for tier, sizes in tiers.items()
                if sizes is not None
            }
        return CacheStats(
            pools=pools,
            actors=actors,
            nodes=len(state.tree),
            receipts=len(state.receipts),
            requests=len(state.ledger),
            pinned=state.pins.units,
            generation=state.tree.generation,
            counters=counters,
            storage=None if storage is None else storage.backend.stats(),
        )

    def audit(self, *, timeout: float | None = None) -> Coroutine[Any, Any, AuditReport]:
        """Recount everything and report what does not hold. Cost O(N + pools)."""
        return self._give(calls.AuditAll(), timeout)

    def pretty_print(
        self, max_nodes: int = 200, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, str]:
        """Return the tree as text, at most `max_nodes` nodes. Cost O(N)."""
        return self._give(calls.Print(as_count(max_nodes, "max_nodes")), timeout)

    def picture(
        self, nodes_max: int = 1000, *, timeout: float | None = None
    ) -> Coroutine[Any, Any, TreePicture]:
        """Return the `nodes_max` most recently used nodes of the tree, for drawing.

        Changes and asks nothing. It has neither tokens nor salts nor slot numbers. Cost O(n log n)
        for n nodes shown, about 3 us each, and O(children of these), 0.1 us each.
        """
        return self._take(calls.Picture(as_count(nodes_max, "nodes_max")), timeout)
