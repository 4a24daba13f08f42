"""Random faults, seeded, and callers that lose patience: for tests of a whole cache under fire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from radixtide import UnifiedRadixCache
from radixtide.actors.envelope import Envelope, PassThrough
from radixtide.components.api import AllocateParams, MatchPrefixParams
from radixtide.components.request import Request
from radixtide.configs.errors import ActorFailed, CallTimeout, OutOfSlots
from support.actors import turns, until
from support.caches import settled, tokens
from support.interceptors import Crash

FAULTS: Final = ("drop", "duplicate", "delay", "crash")
HASTE_S: Final = 0.003
"""A timeout that some calls meet and others do not."""


class Chaos(PassThrough):
    """Does one of `faults` to a share of all envelopes and replies."""

    def __init__(self, dice: Random, faults: tuple[str, ...], share: float = 0.15) -> None:
        self.dice = dice
        self.faults = faults
        self.share = share
        self.done = 0

    def _fault(self, among: tuple[str, ...], share: float) -> str | None:
        if self.dice.random() >= share:
            return None
        fault = self.dice.choice(self.faults)
        if fault not in among:
            return None
        self.done += 1
        return fault

    def _deliver(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        fault = self._fault(("drop", "duplicate", "delay"), self.share)
        if fault == "drop":
            return
        if fault == "delay":
            loop = envelope.receiver.system.loop
            loop.call_later(self.dice.random() * HASTE_S, deliver)
            return
        deliver()
        if fault == "duplicate":
            deliver()

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        self._deliver(envelope, lambda: deliver(envelope))

    def on_reply(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        self._deliver(envelope, deliver)

    def before_handle(self, envelope: Envelope) -> None:
        if self._fault(("crash",), self.share / 4):
            raise Crash("before")

    def after_handle(self, envelope: Envelope) -> None:
        if self._fault(("crash",), self.share / 4):
            raise Crash("after")


async def tried(dice: Random, make: Callable[[float | None], Awaitable[Any]]) -> Any:
    """Make a call once, with or without patience; return its answer, or None when it gave none."""
    task = asyncio.ensure_future(make(dice.choice([None, None, HASTE_S])))
    if dice.random() < 0.15:
        await turns(dice.randrange(1, 12))
        task.cancel()
    try:
        return await task
    except (asyncio.CancelledError, CallTimeout, ActorFailed):
        return None


async def client(cache: UnifiedRadixCache, number: int, dice: Random) -> None:
    """Live one request's life; repeat calls that take, and abort when anything was in doubt."""
    prompt = [
        *tokens(24, start=1000 * (number % 3)),
        *tokens(dice.randrange(1, 20), start=10_000 * (number + 1)),
    ]
    req = Request(f"r{number}", prompt, req_pool_idx=cache.req_to_token_pool.alloc())

    async def live() -> bool:
        hit = None
        while hit is None:
            hit = await tried(
                dice,
                lambda timeout: cache.match_prefix(
                    MatchPrefixParams(key=req.key(), req=req, lock=True), timeout=timeout
                ),
            )
        have = len(hit.device_indices)
        room = AllocateParams(num_tokens=len(prompt) - have, req=req)
        while await tried(dice, lambda timeout: cache.allocate(room, timeout=timeout)) is None:
            pass
        req.kv_committed_len = max(have, len(prompt) - 1)
        if (
            await tried(dice, lambda timeout: cache.cache_unfinished_req(req, timeout=timeout))
            is None
        ):
            return False
        req.kv_committed_len = len(prompt)
        if dice.random() < 0.3:
            return False
        finished = await tried(dice, lambda timeout: cache.cache_finished_req(req, timeout=timeout))
        return finished is not None

    try:
        well = await live()
    except OutOfSlots:
        well = False
    while not well:
        # Aborting is safe at any stage, and as often as it takes to hear that it is done.
        try:
            await cache.abort_req(req)
            well = True
        except (ActorFailed, CallTimeout):
            well = False


async def under_fire(cache: UnifiedRadixCache, seed: int, faults: tuple[str, ...]) -> int:
    """Run three waves of eight clients under random faults; return how many faults there were."""
    dice = Random(seed)
    chaos = Chaos(dice, faults)
    cache.add_interceptor(chaos)
    for wave in range(3):
        await asyncio.gather(*(client(cache, 8 * wave + at, dice) for at in range(8)))
    cache.remove_interceptor(chaos)
    loop = asyncio.get_running_loop()
    # What was delayed comes within HASTE_S; what was lost is sent again until it is settled.
    end = loop.time() + 2 * HASTE_S
    await until(lambda: loop.time() > end)
    await settled(cache)
    return chaos.done
