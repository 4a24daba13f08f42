"""A seeded random walk over a cache with the sidecar of the example.

The cache is audited after every call. Beyond the audit the walk checks, from the tree itself and
from the public calls, what a copy is good for: its page id is nobody else's, never changes while a
lock covers it, and is what the cache tells to those who ask.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from radixtide import (
    AllocateParams,
    EvictParams,
    InsertParams,
    LockReceipt,
    OutOfSlots,
    PinRefused,
    RadixKey,
    Request,
    UnifiedRadixCache,
)
from radixtide.configs.schema import LimitsConfig
from support.caches import Delivery, make_config, match, state_of, system_of
from support.hybrids import AuditedCache, admit, chunk, decode, drain, has
from support.interceptors import CrashAfter, CrashBefore
from support.plugin import GROUP, NAME, GroupName, copies, page_ids, with_sidecar

LETTERS: Final = 3
MET: Final = ("split inside a group", "evicted", "short", "copies")
LONGEST: Final = 5
"""Groups of the longest key."""


@dataclass(frozen=True)
class PluginSetup:
    """One configuration of a walk; its repr is a line of Python that makes it again.

    ``ids`` is less than what is cached needs, so that copies are evicted for others. ``crashes``:
    now and then the component's actor crashes before or after it handles a message.
    """

    components: tuple[str, ...] = ("full",)
    page: int = 16
    group: int = GROUP
    ids: int = 4
    delivery: Delivery = "direct"
    crashes: bool = False

    def fields(self) -> dict[str, Any]:
        """Return what make_config needs."""
        group = self.group
        size = (18 * group // self.page + 1) * self.page
        return with_sidecar(
            self.components,
            ids=self.ids,
            group=group,
            page_size=self.page,
            size=size,
            window=group + group // 2,
            swa_size=12 * group if "swa" in self.components else None,
            states=12,
            max_context=(LONGEST + 3) * group,
            delivery=self.delivery,
            pin_budget=4 * group,
            limits=LimitsConfig(call_timeout_s=20.0, restarts_max=1_000_000),
        )


@dataclass
class Held:
    """Something that holds a lock: what it covers, and the copies seen there so far."""

    prompt: list[int]
    length: int
    receipt: LockReceipt | None = None
    req: Request | None = None
    seen: dict[GroupName, int] = field(default_factory=dict)


class PluginWalk:
    """One cache on a random walk. The choices depend on the seed and on the answers."""

    def __init__(self, setup: PluginSetup, seed: int, cache: UnifiedRadixCache) -> None:
        self.setup = setup
        self.cache = cache
        self.rng = random.Random(seed)
        self.recent: list[list[int]] = []
        self.held: list[Held] = []
        self.pinned: list[list[int]] = []
        self.started = 0
        self.transcript: list[str] = []
        self.met: dict[str, int] = dict.fromkeys((*MET, "crashes"), 0)
        weighted: list[tuple[int, Callable[[], Awaitable[Any]]]] = [
            (12, self.insert),
            (8, self.match),
            (4, self.lock),
            (5, self.unlock),
            (5, self.evict),
            (3, self.evict_copies),
            (5, self.start),
            (10, self.serve),
            (4, self.finish),
            (2, self.abort),
            (1, self.pin),
            (1, self.unpin),
            (1, self.reset),
        ]
        self.moves = [move for weight, move in weighted for _ in range(weight)]

    async def run(self, steps: int) -> None:
        """Take `steps` steps; a failure tells setup, seed and step."""
        for at in range(steps):
            move = self.rng.choice(self.moves)
            before = copies(self.cache)
            starts = {node.id: node.start for node in state_of(self.cache).tree}
            try:
                with self._fault():
                    answer = await move()
                self.transcript.append(f"{move.__name__}: {answer}")
                self._check(before, starts)
            except BaseException as error:
                last = "\n".join(self.transcript[-8:])
                error.add_note(f"{self.setup}, step {at} ({move.__name__}):\n{last}")
                raise

    @contextmanager
    def _fault(self) -> Iterator[None]:
        """Crash the component's actor at some message of a move."""
        if not self.setup.crashes or self.rng.randrange(3):
            yield
            return
        kind = self.rng.choice([CrashBefore, CrashAfter])
        crash = kind(actor=NAME, skip=self.rng.randrange(4))
        self.cache.add_interceptor(crash)
        try:
            yield
        finally:
            self.cache.remove_interceptor(crash)
            self.met["crashes"] += crash.hits

    def _check(self, before: dict[GroupName, int], starts: dict[int, int]) -> None:
        now = copies(self.cache)
        for node in state_of(self.cache).tree:
            if starts.get(node.id, node.start) < node.start and node.start % self.setup.group:
                self.met["split inside a group"] += 1
        assert len(set(now.values())) == len(now), "two groups have one page id"
        self.met["copies"] += len(now)
        self.met["evicted"] += len(before.keys() - now.keys())
        for held in self.held:
            for name, at in held.seen.items():
                assert now.get(name) == at, f"copy {at} of {held.length} locked tokens is gone"
            held.seen = {
                name: at
                for name, at in now.items()
                if name.end <= held.length and name.prefix == self._prefix(held.prompt, name.end)
            }

    @staticmethod
    def _prefix(tokens: list[int], end: int) -> bytes:
        return RadixKey([0]).namespace + RadixKey(tokens[:end]).raw

    # -- choices ----------------------------------------------------------------

    def key(self) -> list[int]:
        """Return a prompt: fresh, or an old one cut at any page, or that and something new."""
        page, most = self.setup.page, LONGEST * self.setup.group
        dice = self.rng
        pages = 1 + dice.randrange(most // page)
        fresh = [dice.randrange(LETTERS)] * page + [dice.randrange(LETTERS)] * (pages - 1) * page
        tail = [7] * dice.randrange(page)
        prompt = fresh + tail
        if self.recent and dice.randrange(4):
            old = dice.choice(self.recent)
            kept = dice.randrange(len(old)) + 1
            prompt = [old, old[:kept], old[: kept - kept % page] + fresh, old + fresh][
                dice.randrange(4)
            ][:most]
        self.recent = [*self.recent[-9:], prompt]
        return prompt

    def prompt_of(self, held: Held) -> list[int]:
        """Return all tokens of what a lock or a request is for."""
        req = held.req
        return held.prompt if req is None else [*held.prompt, *req.output_ids]

    # -- moves ------------------------------------------------------------------

    async def match(self, lock: bool = False) -> Any:
        """Match, and compare the public answer with the tree."""
        prompt = self.key()
        found = await match(self.cache, RadixKey(prompt), lock=lock)
        length = len(found.device_indices)
        ids = await page_ids(self.cache, found)
        known = copies(self.cache)
        group = self.setup.group
        expected = [
            known.get(GroupName(self._prefix(prompt, end), end), -1)
            for end in range(group, length + 1, group)
        ]
        assert ids == expected, (ids, expected)
        if lock:
            self.held.append(Held(prompt, length, found.receipt))
        return length, ids, found.miss_reason.value

    async def lock(self) -> Any:
        """Match and lock."""
        if sum(held.req is None for held in self.held) < 3:
            return await self.match(lock=True)
        return None

    async def unlock(self) -> Any:
        """Release a lock, now and then its window first."""
        mine = [held for held in self.held if held.req is None]
        if not mine:
            return None
        held = self.rng.choice(mine)
        assert held.receipt is not None
        if "swa" in self.setup.components and not self.rng.randrange(3):
            return sorted((await self.cache.dec_swa_lock_only(held.receipt)).unprotected.items())
        self.held.remove(held)
        return sorted((await self.cache.dec_lock_ref(held.receipt)).unprotected.items())

    async def insert(self) -> Any:
        """Insert a prompt from the root, or from some page of what is cached on."""
        prompt = self.key()
        cache, page = self.cache, self.setup.page
        found = await match(cache, RadixKey(prompt), lock=True)
        receipt = found.receipt
        assert receipt is not None
        length = len(prompt) - len(prompt) % page
        hit = len(found.device_indices)
        prev = page * self.rng.randrange(hit // page + 1) if self.rng.randrange(2) else hit
        done = None
        try:
            if length > prev:
                done = await self._insert(prompt[:length], prev, found.device_indices[:prev])
        except OutOfSlots as error:
            done = f"out of {sorted(error.pools)}"
        await cache.dec_lock_ref(receipt)
        return done

    async def _insert(self, prompt: list[int], prev: int, kept: torch.Tensor) -> Any:
        cache = self.cache
        live = self.rng.choice([None, None, 0, min(self.setup.page * 2, len(prompt) - prev)])
        state = has(cache, "mamba") and bool(self.rng.randrange(2))
        given = await cache.allocate(
            AllocateParams(
                num_tokens=len(prompt) - prev,
                swa_num_tokens=live if has(cache, "swa") else None,
                mamba_num=int(state),
            )
        )
        done = await cache.insert(
            InsertParams(
                key=RadixKey(prompt),
                value=torch.cat((kept, given.indices)),
                mamba_value=given.mamba_indices,
                prev_prefix_len=prev,
            )
        )
        group = self.setup.group
        adopted = done.component_adopted.get(NAME, ())
        for begin, end in adopted:
            assert begin % group == end % group == 0
            assert 0 <= begin < end <= done.inserted_len
        if -1 in await page_ids(cache, done):
            self.met["short"] += 1
        return done.prefix_len, done.inserted_len, adopted

    async def evict(self) -> Any:
        """Evict of any pool."""
        names = [*self.setup.components, NAME]
        wanted = {name: self.rng.choice([0, 0, 1, self.setup.group]) for name in names}
        before = await self._free()
        done = await self.cache.evict(
            EvictParams(
                wanted["full"],
                wanted.get("swa", 0),
                wanted.get("mamba", 0),
                {NAME: wanted[NAME]},
            )
        )
        after = await self._free()
        freed = {
            "full": done.num_tokens_evicted,
            "swa": done.swa_num_tokens_evicted,
            "mamba": done.mamba_num_evicted,
            NAME: done.others.get(NAME, 0),
        }
        assert {name: after[name] - before[name] for name in names} == {
            name: freed[name] for name in names
        }
        return done

    async def evict_copies(self) -> Any:
        """Evict page ids; as many as are asked for, where they are evictable."""
        wanted = 1 + self.rng.randrange(4)
        pool = (await self.cache.stats()).pools[NAME]["device"]
        done = await self.cache.evict(EvictParams(others={NAME: wanted}))
        assert done.others.get(NAME, 0) >= min(wanted, pool.evictable)
        return done

    async def _free(self) -> dict[str, int]:
        return {name: one["device"].free for name, one in (await self.cache.stats()).pools.items()}

    async def start(self) -> Any:
        """Admit a request."""
        if sum(held.req is not None for held in self.held) >= 3:
            return None
        self.started += 1
        prompt = self.key()
        try:
            req = await admit(
                self.cache, f"r{self.started}", prompt, row=bool(self.rng.randrange(2))
            )
        except OutOfSlots as error:
            return f"out of {sorted(error.pools)}"
        self.held.append(Held(prompt, req.cache_protected_len, req=req))
        return req.cache_protected_len

    def _request(self) -> Held | None:
        running = [held for held in self.held if held.req is not None]
        return self.rng.choice(running) if running else None

    async def serve(self) -> Any:
        """Let a request compute a chunk, or decode some tokens."""
        held = self._request()
        if held is None or held.req is None:
            return None
        req = held.req
        if self.rng.randrange(2):
            try:
                for _ in range(self.rng.randrange(self.setup.page)):
                    if len(self.prompt_of(held)) < (LONGEST + 2) * self.setup.group:
                        await decode(self.cache, req, self.rng.randrange(LETTERS))
            except OutOfSlots as error:
                return f"out of {sorted(error.pools)}"
            return len(self.prompt_of(held))
        length = self.rng.randint(req.cache_protected_len, len(self.prompt_of(held)))
        if has(self.cache, "swa") and self.rng.randrange(2):
            await self.cache.release_window(req, max(length, req.swa_evicted_seqlen))
        inserted = await chunk(self.cache, req, length)
        held.prompt, held.length = self.prompt_of(held), req.cache_protected_len
        req.origin_input_ids, req.output_ids = held.prompt, []
        return inserted

    async def finish(self) -> Any:
        """Finish a request."""
        held = self._request()
        if held is None or held.req is None:
            return None
        self.held.remove(held)
        held.req.kv_committed_len = None
        return await self.cache.cache_finished_req(held.req, is_insert=bool(self.rng.randrange(4)))

    async def abort(self) -> Any:
        """Abort a request."""
        held = self._request()
        if held is None or held.req is None:
            return None
        self.held.remove(held)
        return await self.cache.abort_req(held.req)

    async def pin(self) -> Any:
        """Pin a prompt."""
        prompt = self.key()
        try:
            done = await self.cache.pin(RadixKey(prompt), 1000.0)
        except PinRefused:
            return "refused"
        self.pinned.append(prompt)
        return done

    async def unpin(self) -> Any:
        """Let go of a pin."""
        if self.pinned:
            return await self.cache.unpin(RadixKey(self.pinned.pop()))
        return None

    async def reset(self) -> Any:
        """Drop all, now and then."""
        if self.rng.randrange(3) or self.held:
            return None
        await self.cache.reset()
        self.pinned.clear()
        return "reset"

    async def close(self) -> None:
        """Give everything back, and check that nothing is left."""
        for held in self.held:
            if held.req is not None:
                await self.cache.abort_req(held.req)
            elif held.receipt is not None:
                await self.cache.dec_lock_ref(held.receipt)
        self.held.clear()
        while self.pinned:
            await self.unpin()
        await drain(self.cache)


async def walk(setup: PluginSetup, seed: int, steps: int) -> PluginWalk:
    """Take a walk to its end."""
    async with AuditedCache(make_config(**setup.fields())) as cache:
        taken = PluginWalk(setup, seed, cache)
        await taken.run(steps)
        await taken.close()
        assert not system_of(cache).unheard_errors
    return taken


async def both_deliveries_agree(setup: PluginSetup, seed: int, steps: int) -> PluginWalk:
    """Take the same walk under both deliveries; every answer must be the same."""
    direct = await walk(replace(setup, delivery="direct"), seed, steps)
    queued = await walk(replace(setup, delivery="queued"), seed, steps)
    for at, (one, other) in enumerate(zip(direct.transcript, queued.transcript, strict=True)):
        assert one == other, f"{setup}, seed {seed}: answer {at} depends on the delivery"
    return direct
