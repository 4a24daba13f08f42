"""Seeded random walks of a cache with tiers, which can be repeated with fewer steps.

Every step draws from a generator of its own, made of the seed and the step's number, so any subset
of the steps of a walk is a walk too. Everything that a match or a load hands out is read and
compared with what was written for it; a plain set of the prefixes ever inserted tells what may be
hit. The note of a failure ends with one line of Python that repeats the shortest walk found.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import torch

from support.caches import assert_nothing_held, system_of
from support.shrinking import shrunk
from support.tier_walk_serving import Serving
from support.tier_walk_setup import TierSetup

SAME = 20
"""Letters of what is said that two failures of one cause share."""

Move = Callable[[random.Random], Coroutine[Any, Any, None]]


class TierWalk(Serving):
    """One cache on a random walk."""

    def __init__(self, setup: TierSetup, seed: int) -> None:
        super().__init__(setup, seed)
        weighted: list[tuple[int, Move]] = [
            (9, self.match),
            (2, self.lock),
            (9, self.unlock),
            (2, self.allocate),
            (4, self.free),
            (18, self.insert),
            (6, self.evict),
            (1, self.pin),
            (1, self.unpin),
            (26, self.load),
            (12, self.end_load),
            (20, self.release),
            (3, self.finish_all),
            (9, self.sink),
            (2, self.leave),
            (1, self.drain),
            (5, self.advance),
            (3, self.flush),
            (12, self.start),
            (10, self.extend),
            (8, self.chunk),
            (7, self.finish),
            (4, self.abort),
            (1, self.clean_up),
        ]
        if setup.storage:
            weighted += [
                (16, self.fetch),
                (8, self.end_fetch),
                (18, self.serve_storage),
                (1, self.switch_storage),
            ]
        if self.has("swa") or self.has("mamba"):
            weighted += [(3, self.give_up_window), (5, self.give_back_window)]
        if setup.damage:
            weighted += [(5, self.damage)]
        self.moves = [move for weight, move in weighted for _ in range(weight)]

    def run(self, numbers: Iterable[int]) -> None:
        """Take the steps of these numbers."""
        for number in numbers:
            dice = random.Random(f"{self.seed} {number}")
            move = dice.choice(self.moves)
            self._guarded(self._step(move, dice, number), f"step {number} ({move.__name__})")

    def close(self) -> None:
        """Give everything back, and check that nothing is left."""
        self._guarded(self._give_back(), "the end")
        self.loop.run_until_complete(self.cache.__aexit__(None, None, None))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def _guarded(self, work: Coroutine[Any, Any, None], when: str) -> None:
        try:
            self.loop.run_until_complete(work)
        except BaseException as error:
            calls = "\n".join(self.transcript[-16:])
            error.add_note(f"{self.setup}, seed {self.seed}, {when}:\n{calls}")
            self._discard()
            raise

    def _discard(self) -> None:
        """Close what can be closed after a failure; errors that follow from it are no news."""

        async def leave() -> None:
            for going in self.going:
                going.task.cancel()
            for store in self.stores:
                store.release()
            # What nobody waits for any more is not told as an error.
            await asyncio.gather(*(going.task for going in self.going), return_exceptions=True)
            for load in self.loads:
                load.handle._closed = True
            for fetch in self.fetches:
                fetch.handle._closed = True
            actor = self.cache._tiering
            if actor is not None:
                await actor.close()

        self.loop.set_exception_handler(lambda loop, context: None)
        try:
            self.loop.run_until_complete(leave())
            self.cache._system = None
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    async def _step(self, move: Move, dice: random.Random, number: int) -> None:
        if self.crashes is not None:
            self.crashes.dice = random.Random(f"{self.seed} {number} crash")
            self.crashes.quiet = False
        self.say(f"-- {number}")
        self.begin(move.__name__, move(dice))
        await self.rest()
        if self.crashes is not None:
            self.crashes.quiet = True
        if not number % self.setup.audit_every:
            await self.check_books()
        if not number % self.setup.look_every:
            await self.look_around()
        await self.rest()

    async def look_around(self) -> None:
        """Look at every byte."""
        self.check_nodes()
        self.check_loose()
        for live in list(self.live):
            if live in self.live:
                await self.check_live(live)
        await self.check_stored()

    async def clean_up(self, dice: random.Random) -> None:
        """Give everything back and reset."""
        if dice.randrange(3) or not self.alone:
            return
        self.say("clean up")
        await self._let_go()
        await self.finish_all(dice)
        if self.holds or len(self.going) > 1:
            return
        await self.cache.reset()
        if not self.setup.storage:
            self.known.clear()
        self.handles.clear()
        self.met["reset"] += 1

    @property
    def holds(self) -> bool:
        """Whether the walk holds anything."""
        locks = len(self.live) + len(self.loads) + len(self.receipts) + len(self.pins)
        return locks + len(self.fetches) + len(self.loose) + len(self.loose_states) > 0

    async def _let_go(self) -> None:
        for live in list(self.live):
            if not live.busy:
                await self.end(live)
        for load in [load for load in self.loads if load.req is None]:
            await self.close_load(load)
        for fetch in self.fetches:
            await fetch.handle.close()
        self.fetches.clear()
        for held in self.receipts:
            await self.cache.dec_lock_ref(held.receipt)
        self.receipts.clear()
        for key in self.pins:
            await self.cache.unpin(key)
        self.pins.clear()
        self.check_loose()
        for slots, _ in self.loose:
            await self.cache.free(slots)
        for slot, _ in self.loose_states:
            await self.cache.free(torch.tensor([slot]), "mamba")
        self.loose.clear()
        self.loose_states.clear()

    async def _give_back(self) -> None:
        if self.crashes is not None:
            self.crashes.quiet = True
        dice = random.Random(0)
        # What waits for the end of a request that stands on a failed load ends with that.
        for _ in range(20):
            await self._let_go()
            await self.finish_all(dice)
            await self.rest()
            if not self.going and not self.holds:
                break
        assert not self.going, [one.name for one in self.going]
        for store in self.stores:
            store.release()
        await self.cache.drain()
        await self.look_around()
        await assert_nothing_held(self.cache, heard=self.crashes is None)
        assert not self.tiers.loads, self.tiers.loads
        assert not self.tiers.fetches, self.tiers.fetches
        await self.cache.flush("device")
        await self.cache.drain()
        await self._whole("device")
        await self.cache.flush("host")
        await self._whole("host")
        assert (await self.cache.stats()).nodes == 0
        await self.check_books()
        assert self.crashes is not None or not system_of(self.cache).unheard_errors

    async def _whole(self, tier: str) -> None:
        for name, pools in (await self.cache.stats()).pools.items():
            assert pools[tier].free == pools[tier].size, (name, tier, pools[tier])


def replay(setup: TierSetup, seed: int, numbers: Iterable[int]) -> Counter[str]:
    """Take the steps of these numbers, give everything back; return what was met."""
    walk = TierWalk(setup, seed)
    walk.run(numbers)
    walk.close()
    return walk.met


def shortest(
    setup: TierSetup, seed: int, numbers: Sequence[int], seconds: float, error: BaseException
) -> list[int]:
    """Return as few of `numbers` as can be found in `seconds` that fail much like `error`."""

    def fails(some: Sequence[int]) -> bool:
        try:
            replay(setup, seed, some)
        except Exception as other:  # noqa: BLE001 - another failure is looked for
            return _kind(other) == _kind(error)
        return False

    return shrunk(numbers, fails, seconds)


def _kind(error: BaseException) -> tuple[str, str, str]:
    """Return what failures have in common that have the same cause: where, and what is said."""
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__, f"{frames[-1].filename} {frames[-1].lineno}", str(error)[:SAME]


def walk(setup: TierSetup, seed: int, steps: int, shrink: float = 20) -> Counter[str]:
    """Walk `steps` steps; a failure's note ends with the shortest walk that was found to fail."""
    made = TierWalk(setup, seed)
    at = 0
    try:
        for at in range(steps):
            made.run((at,))
        at = steps
        made.close()
    except Exception as error:
        numbers = shortest(setup, seed, range(min(at + 1, steps)), shrink, error)
        error.add_note(f"replay({setup}, {seed}, {numbers})")
        raise
    return made.met


__all__ = ("TierWalk", "replay", "shortest", "walk")
