"""What ranks do in the tests of caches that run on several ranks; each runs on every rank.

Every rank makes the same calls. Its transfers end when its own dice say so, and what it reports
must be the same on each all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Literal

import pytest

from radixtide import OutOfSlots
from radixtide.actors.agreement import Agreement, RanksDiverged
from radixtide.components.api import LockReceipt
from radixtide.tiers.copy_engine import CopyJob
from support.actors import turns, until
from support.held_engine import TURNS_MAX
from support.hybrids import AuditedCache
from support.ranks import Rank
from support.seams import resting
from support.tier_config import SETS, tier_config
from support.tiered import Tiers


class Counting(Agreement):
    """Counts the collectives of another agreement, and how long their vectors were."""

    def __init__(self, inner: Agreement) -> None:
        self.inner = inner
        self.rank, self.ranks = inner.rank, inner.ranks
        self.lengths: list[int] = []

    async def minimum(self, values: list[int]) -> list[int]:
        """Agree."""
        self.lengths.append(len(values))
        return await self.inner.minimum(values)


class OnRank:
    """One rank's cache, and its own rhythm of transfers."""

    def __init__(self, rank: Rank, t: Tiers, agreement: Counting) -> None:
        self.rank = rank
        self.t = t
        self.cache = t.cache
        self.agreement = agreement
        self.own = random.Random(f"{rank.options.get('seed')} {rank.rank}")
        self.steps = 0
        self.failing = False
        t.engine.choose = self._how

    def _how(self, _: CopyJob) -> Literal["pass", "copied", "late"]:
        return self.own.choice(("pass", "copied", "late"))

    async def rest(self) -> None:
        """Wait until this rank does nothing by itself; copies may go on."""
        for _ in range(3):
            await until(lambda: resting(self.cache), TURNS_MAX)
            await turns(4)

    async def step(self) -> None:
        """Let some of this rank's transfers end, or fail here alone; then agree."""
        engine = self.t.engine
        for job in engine.held():
            if not self.own.randrange(2):
                engine.release([job])
            elif not self.own.randrange(12) and self.failing:
                await engine.arrived(1)
                engine.fail([job])
        await turns(self.own.randrange(30))
        before = len(self.agreement.lengths)
        await self.cache.step()
        assert len(self.agreement.lengths) == before + 1, "one collective a step"
        self.steps += 1
        await self.rest()

    async def call(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Make a call, and step while it waits; as often on each rank."""
        task = asyncio.ensure_future(call)
        await self.rest()
        for _ in range(400):
            if task.done():
                return task.result()
            await self.step()
        raise AssertionError(f"{call} waits, and nothing is agreed on")

    async def report(self, what: str, answer: Any = None) -> None:
        """Tell what this rank is like now; how many bytes its own store moved is its own affair."""
        stats = await self.cache.stats()
        counters = {
            name: count for name, count in stats.counters.items() if not name.endswith("_bytes")
        }
        self.rank.report(
            [what, repr(answer), self.t.picture(), await self.t.sizes(), stats.nodes, counters]
        )


@contextlib.asynccontextmanager
async def on_rank(rank: Rank, **fields: Any) -> AsyncGenerator[OnRank, None]:
    """Open this rank's cache."""
    agreement = Counting(rank.agreement())
    given = {"components": SETS[-1], "page_size": 4, **fields}
    if given.pop("stored", False):
        given["url"] = f"file:{rank.folder / f'store {rank.rank}'}"
        shard = {"rank": rank.rank, "ranks": rank.ranks, "prefetch_policy": "wait_complete"}
        given["storage"] = {**shard, **given.get("storage", {})}
    cache = AuditedCache(tier_config(**given), agreement=agreement)
    async with cache:
        yield OnRank(rank, Tiers(cache), agreement)


async def many_calls(rank: Rank) -> None:
    """Walk: the same calls on each rank, each in its own rhythm, failures on one rank only."""
    for number, walk in enumerate(rank.options["walks"]):
        await one_walk(rank, number, **walk)


async def one_walk(
    rank: Rank, number: int, *, components: list[str], policy: str, stored: bool, steps: int
) -> None:
    """Take one of the walks."""
    dice = random.Random(f"{rank.options['seed']} {number}")
    fields: dict[str, Any] = {"host_pages": 20, "host_swa_pages": 16, "host_states": 6}
    fields |= {"pages": 24, "states": 10, "components": tuple(components), "policy": policy}
    async with on_rank(rank, stored=stored, **fields) as one:
        t = one.t
        receipts: list[LockReceipt] = []
        # What every walk is to meet.
        prelude = ["put", "match", "drain", "evict", "load"]
        for _ in range(steps):
            moves = ["put", "put", "match", "load", "load", "evict", "lock", "unlock"]
            move = dice.choice([*moves, "fetch"] if stored else moves)
            begins = bool(prelude)
            move = prelude.pop(0) if begins else move
            one.failing = not begins and rank.options["failing"]
            which = 0 if begins else dice.randrange(4)
            prompt = t.key(t.span(2 + 2 * (which % 3), 100 * which))
            answer: Any = None
            if move == "put":
                try:
                    answer = (await one.call(t.put(prompt))).result.prefix_len
                except OutOfSlots:
                    answer = "no room"
            elif move == "drain":
                await one.call(t.cache.drain())
            elif move == "match":
                answer = await one.call(t.hit(prompt))
            elif move == "load":
                found = await one.call(t.match(prompt))
                handle = await one.call(t.cache.load_back(found))
                answer = handle.length, await one.call(handle.wait()), handle.failed
                await one.call(handle.close())
            elif move == "fetch":
                fetch = await one.call(t.cache.prefetch(prompt))
                answer = await one.call(fetch.wait())
                await one.call(fetch.close())
            elif move == "evict":
                pages = 10**6 if begins else dice.choice((4, 10**6))
                await one.call(t.evict(full=pages, swa=pages if t.has("swa") else 0))
            elif move == "lock" and len(receipts) < 3:
                receipt = (await one.call(t.match(prompt, lock=True))).receipt
                receipts.append(receipt)
            elif move == "unlock" and receipts:
                await one.call(t.cache.dec_lock_ref(receipts.pop(dice.randrange(len(receipts)))))
            await one.step()
            await t.sound()
            await one.report(move, answer)
        for receipt in receipts:
            await one.call(t.cache.dec_lock_ref(receipt))
        t.engine.hold_no_more()
        await one.call(t.cache.drain())
        await one.call(t.cache.flush("device"))
        await one.call(t.cache.flush("host"))
        for name in t.config.components:
            for tier in ("device", "host"):
                pool = await t.pool(name, tier)
                assert pool.free == pool.size, (name, tier, pool)
        await one.report("end", one.steps)


async def less_memory(rank: Rank) -> None:
    """One rank has less host memory: what fits there is backed up on both, the rest on none."""
    async with on_rank(rank, host_pages=8 if rank.rank == 0 else 4, window=2) as one:
        t = one.t
        for at in range(3):
            await one.call(t.put(t.key(t.span(4, 100 * at))))
            for _ in range(4):
                await one.step()
                await one.report(f"put {at}")
            # On a busy machine four steps may not be enough for the copies.
            await one.call(t.cache.drain())
        await one.call(t.demote())
        await one.call(t.cache.drain())
        await one.report("end", await one.call(t.hit(t.key(t.span(4, 200)))))


async def nothing_pending(rank: Rank) -> None:
    """Step while one rank has something to tell and the other has not: one collective each."""
    async with on_rank(rank) as one:
        t = one.t
        t.engine.hold("backup", how="late" if rank.rank else "copied")
        await one.call(t.put(t.key(8)))
        begun = len(one.agreement.lengths)
        for _ in range(5):
            await t.cache.step()
            await one.rest()
            await one.report("waits")
        t.engine.release()
        t.engine.hold_no_more()
        await one.call(t.cache.drain())
        lengths = one.agreement.lengths[begun:]
        assert len(set(lengths)) == 1, "a vector of fixed size"
        await one.report("done", len(lengths) > 5)


async def less_fetched(rank: Rank) -> None:
    """One rank's storage lost some pages: both use what both have, and give the rest back."""
    fields: dict[str, Any] = {"components": SETS[0], "stored": True}
    fields["storage"] = {"batch_pages": 2}
    async with on_rank(rank, **fields) as one:
        await one.call(one.t.put(one.t.key(8)))
        await one.call(one.t.cache.drain())
        await one.report("stored")
    async with on_rank(rank, **fields) as one:
        t = one.t
        assert t.store is not None
        count = 0

        def lost(_: Any) -> bool:
            nonlocal count
            count += 1
            return rank.rank == 1 and count > 5

        t.store.loses = lost
        fetch = await one.call(t.cache.prefetch(t.key(8)))
        brought = await one.call(fetch.wait())
        assert brought == 5 * t.page
        await one.call(fetch.close())
        await one.report("fetched", (brought, await one.call(t.hit(t.key(8)))))
        pool = await t.pool()
        assert pool.size - pool.free == 5 * t.page
        assert await one.call(t.load(t.key(8))) == 5


async def other_calls(rank: Rank) -> None:
    """One rank makes a call that the other does not: both are told at the next step."""
    async with on_rank(rank) as one:
        await one.call(one.t.put(one.t.key(8)))
        await one.step()
        if rank.rank == 0:
            await one.t.put(one.t.key(one.t.span(4, 300)))
        with pytest.raises(RanksDiverged):
            await one.cache.step()
        rank.report("told")
