"""A tiny continuous-batching scheduler: several requests over one cache, all on one loop.

Each step of the loop plays one forward pass. A request is admitted when slots for its prompt can be
had, its prompt is computed in chunks, then it decodes one token a step. When memory runs out, the
youngest request is retracted: what it has computed stays cached, and it is admitted again later.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from radixtide import (
    AllocateParams,
    CacheConfig,
    MatchPrefixParams,
    OutOfSlots,
    Request,
    UnifiedRadixCache,
)
from radixtide.configs.schema import FullPoolConfig, PoolsConfig

CHUNK = 32
CONFIG = CacheConfig(
    pools=PoolsConfig(full=FullPoolConfig(size=288, holds_bytes=False)), page_size=8
)


@dataclass
class Job:
    """What a client asked for, and the request that serves it at the moment."""

    name: str
    prompt: np.ndarray
    answer_len: int
    answer: list[int] = field(default_factory=list)
    req: Request | None = None
    computed: int = 0
    hits: int = 0
    retractions: int = 0


class Scheduler:
    """Runs jobs to their end over one cache."""

    def __init__(self, cache: UnifiedRadixCache, jobs: list[Job]) -> None:
        self.cache = cache
        self.waiting = deque(jobs)
        self.running: list[Job] = []
        self.done: list[Job] = []

    async def run(self) -> None:
        """Step until every job is done."""
        while self.waiting or self.running:
            await self.admit()
            for job in list(self.running):
                if job in self.running:  # it may have been retracted for an earlier one
                    await self.step(job)
            await asyncio.sleep(0)  # the forward pass of the whole batch would be here

    async def admit(self) -> None:
        """Admit the job that waits longest, if there is memory for its prompt; one a step."""
        if not self.waiting:
            return
        job = self.waiting[0]
        tokens = np.concatenate((job.prompt, np.array(job.answer, dtype=np.int64)))
        req = Request(rid=job.name, origin_input_ids=tokens)
        req.req_pool_idx = self.cache.req_to_token_pool.alloc()
        # The last token is held back: a forward pass needs at least one to compute.
        key = req.key(len(tokens) - 1)
        match = await self.cache.match_prefix(MatchPrefixParams(key=key, req=req, lock=True))
        hit = len(match.device_indices)
        try:
            await self.cache.allocate(AllocateParams(num_tokens=len(tokens) - hit, req=req))
        except OutOfSlots:
            await self.cache.abort_req(req)
            return
        self.waiting.popleft()
        job.req, job.computed, job.hits = req, hit, job.hits + hit
        self.running.append(job)

    async def step(self, job: Job) -> None:
        """Compute the next chunk of a prompt, or the next token of an answer."""
        req = job.req
        assert req is not None
        length = len(req.origin_input_ids)
        if job.computed < length:
            job.computed = min(job.computed + CHUNK, length)
            req.kv_committed_len = job.computed
            if job.computed < length:
                await self.cache.cache_unfinished_req(req, chunked=True)
                return
        elif not await self.grow(job, req):
            return
        job.answer.append(int(job.prompt[0]) + len(job.answer))
        if len(job.answer) == job.answer_len:
            await self.cache.cache_finished_req(req)
            self.running.remove(job)
            self.done.append(job)

    async def grow(self, job: Job, req: Request) -> bool:
        """Take a slot for the token made last, retracting the youngest job where it must be."""
        while True:
            try:
                await self.cache.allocate(AllocateParams(num_tokens=1, req=req))
            except OutOfSlots:
                youngest = self.running[-1]
                await self.retract(youngest)
                if youngest is job:
                    return False
                continue
            req.output_ids.append(job.answer[-1])
            job.computed += 1
            req.kv_committed_len = job.computed
            return True

    async def retract(self, job: Job) -> None:
        """Give up a job's memory for now; what it computed stays cached while there is room."""
        assert job.req is not None
        await self.cache.cache_finished_req(job.req)
        job.req, job.retractions = None, job.retractions + 1
        self.running.remove(job)
        self.waiting.appendleft(job)


async def main() -> None:
    system = np.arange(40)
    jobs = [
        Job(f"chat-{n}", np.concatenate((system, np.arange(1000 * n, 1000 * n + 30))), 60)
        for n in range(1, 6)
    ]
    async with UnifiedRadixCache(CONFIG) as cache:
        scheduler = Scheduler(cache, jobs)
        await scheduler.run()
        for job in sorted(scheduler.done, key=lambda one: one.name):
            print(
                f"{job.name}: {len(job.answer)} tokens, {job.hits} found in the cache, "
                f"retracted {job.retractions} times"
            )
        pool = (await cache.stats()).pools["full"]["device"]
        print(
            f"held {pool.held}, protected {pool.protected}, cached {pool.evictable} of {pool.size}"
        )
        print("sound:", (await cache.audit()).ok)


asyncio.run(main())
