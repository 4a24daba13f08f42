"""A scheduler of plain functions: chunked prefill in one thread, decoding in batches of one hop.

No model: "computing" is counting. Two client threads hand in prompts; the engine's own thread, the
main one, serves them. There is no event loop in it: the cache has its own, in a thread of its own.
"""

import queue
import threading
from dataclasses import dataclass, field

import radixtide
from radixtide import AllocateParams, CacheConfig, MatchPrefixParams, OutOfSlots, Request
from radixtide.blocking import UnifiedRadixCache
from radixtide.configs.schema import FullPoolConfig, PoolsConfig

CHUNK = 32
CONFIG = CacheConfig(
    pools=PoolsConfig(full=FullPoolConfig(size=512, holds_bytes=False)), page_size=8
)


@dataclass
class Job:
    """What a client asked for, and the request that serves it."""

    name: str
    prompt: list[int]
    answer_len: int
    answer: list[int] = field(default_factory=list)
    req: Request | None = None
    hit: int = 0


class Engine:
    """Serves jobs from a queue, each step a chunk of one prompt or a token of every other job."""

    def __init__(self, cache: UnifiedRadixCache) -> None:
        self.cache = cache
        self.inbox: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.running: list[Job] = []
        self.done: list[Job] = []

    def serve(self, count: int) -> None:
        """Serve until so many jobs are done."""
        while len(self.done) < count:
            if not self.running or not self.inbox.empty():
                self.admit(self.inbox.get())
            # One way to the cache's thread and back for all of them.
            self.running = self.cache.run(self.decode, self.running)

    def admit(self, job: Job) -> None:
        """Find what is cached of a prompt, take slots for the rest, and compute it in chunks."""
        req = job.req = Request(rid=job.name, origin_input_ids=job.prompt)
        length = len(job.prompt)
        # The last token is held back: a forward pass needs at least one to compute.
        match = self.cache.match_prefix(
            MatchPrefixParams(key=req.key(length - 1), req=req, lock=True)
        )
        job.hit = len(match.device_indices)
        try:
            self.cache.allocate(AllocateParams(num_tokens=length - job.hit, req=req))
        except OutOfSlots:
            self.cache.abort_req(req)
            raise
        for computed in range(job.hit + CHUNK, length, CHUNK):
            req.kv_committed_len = computed
            self.cache.cache_unfinished_req(req, chunked=True)
        req.kv_committed_len = length
        self.running.append(job)

    async def decode(self, cache: radixtide.UnifiedRadixCache, jobs: list[Job]) -> list[Job]:
        """Add a token to each job; return those that go on. Runs where the cache runs."""
        going_on = []
        for job in jobs:
            assert job.req is not None
            await cache.allocate(AllocateParams(num_tokens=1, req=job.req))
            token = job.prompt[0] + len(job.answer)
            job.answer.append(token)
            job.req.output_ids.append(token)
            job.req.kv_committed_len = len(job.prompt) + len(job.answer)
            if len(job.answer) < job.answer_len:
                going_on.append(job)
            else:
                await cache.cache_finished_req(job.req)
                self.done.append(job)
        return going_on


def client(engine: Engine, user: int, sent: threading.Event, wait: threading.Event) -> None:
    """Send two prompts that begin with the system prompt."""
    wait.wait()
    for turn in range(2):
        own = [1000 * user + 100 * turn + at for at in range(30)]
        engine.inbox.put(Job(f"user {user}, turn {turn}", [*range(64), *own], 20))
    sent.set()


def main() -> None:
    with UnifiedRadixCache(CONFIG) as cache:
        engine = Engine(cache)
        start, first, second = (threading.Event() for _ in range(3))
        start.set()
        threading.Thread(target=client, args=(engine, 1, first, start)).start()
        threading.Thread(target=client, args=(engine, 2, second, first)).start()
        engine.serve(4)
        for job in sorted(engine.done, key=lambda one: one.name):
            print(f"{job.name}: {len(job.answer)} tokens, {job.hit} of its prompt were cached")
        pool = cache.stats().pools["full"]["device"]
        print(f"held {pool.held}, cached {pool.evictable} of {pool.size}")
        print("sound:", cache.audit().ok)


main()
