"""A simulated scheduler: takes the steps of its script, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from radixtide.actors.tier_handles import Handle
from radixtide.configs.errors import RadixtideError
from radixtide.simulation import script as s
from radixtide.simulation.scheduler_base import EraOver
from radixtide.simulation.scheduler_whole import OverAll
from radixtide.simulation.world import StopRun

Taken = Callable[[Any, Any], Coroutine[Any, Any, None]]

_METHODS: Final[dict[type, Taken]] = {
    s.Match: OverAll.match,
    s.Insert: OverAll.insert,
    s.Allocate: OverAll.allocate,
    s.Free: OverAll.free,
    s.Evict: OverAll.evict,
    s.Lock: OverAll.lock,
    s.Unlock: OverAll.unlock,
    s.DropWindow: OverAll.drop_window,
    s.Hold: OverAll.hold,
    s.Indices: OverAll.indices,
    s.Paired: OverAll.paired,
    s.Pin: OverAll.pin,
    s.Unpin: OverAll.unpin,
    s.Start: OverAll.start,
    s.Extend: OverAll.extend,
    s.Chunk: OverAll.chunk,
    s.Finish: OverAll.finish,
    s.Abort: OverAll.abort,
    s.Retract: OverAll.retract,
    s.ReleaseWindow: OverAll.release_window,
    s.LoadBack: OverAll.load_back,
    s.CloseLoad: OverAll.close_load,
    s.Prefetch: OverAll.prefetch,
    s.CloseFetch: OverAll.close_fetch,
    s.Drain: OverAll.drain,
    s.Flush: OverAll.flush,
    s.Sink: OverAll.sink,
    s.Detach: OverAll.detach,
    s.Attach: OverAll.attach,
    s.Reset: OverAll.reset,
    s.Stats: OverAll.stats,
    s.Agree: OverAll.agree,
    s.Pause: OverAll.pause,
    s.Restart: OverAll.restart,
    s.Hostile: OverAll.hostile,
}


class Scheduler(OverAll):
    """Takes the steps of a script."""

    async def run(self, script: s.Script) -> None:
        """Take all steps. Raises StopRun where the run is to end."""
        for step in script:
            await self.take_step(step)

    async def take_step(self, step: s.AnyStep) -> None:
        """Take one step, and count it. Raises StopRun."""
        world = self.world
        await world.opened()
        if world.violations or world.stopping:
            raise StopRun
        world.steps += 1
        await self.attempt(step, world.steps)
        world.step_over()

    async def attempt(self, step: s.AnyStep, number: int) -> None:
        """Take one step, whatever becomes of the cache meanwhile."""
        if self.is_over:
            await self.leave()
        self.step = number
        self.say = []
        journal = self.world.journal
        if journal is not None:
            journal.note_step_began(self.step, self.number or self.rank, step.name, step)
        try:
            await getattr(self, _METHODS[type(step)].__name__)(step)
        except EraOver:
            await self.leave()
        except RadixtideError as error:
            self.wrong(f"{step.name}: {type(error).__name__}: {error}")
        if journal is not None:
            said = "; ".join(self.say)
            journal.note_step_ended(self.step, self.number or self.rank, said)

    async def leave(self) -> None:
        """Forget what was held of a cache that is closed; go on with the one that is open."""
        for handle in self._handles():
            with suppress(RadixtideError):
                await handle.close()
        await self.world.opened()
        self.forget()

    def drop_handles(self) -> None:
        """Forget all handles, with nobody to let go of them."""
        for handle in self._handles():
            handle._closed = True  # or it would warn

    def _handles(self) -> list[Handle]:
        kept: list[Handle] = [load.handle for load in self.loads]
        kept += [fetch.handle for fetch in self.fetches]
        for live in self.live:
            kept += [load.handle for load in live.loads]
            kept += [fetch.handle for fetch in live.fetches]
        return kept

    async def end_all(self) -> None:
        """Give back all that is held, whatever becomes of the cache meanwhile."""
        self.step = self.world.steps
        while True:
            await self.world.opened()
            if self.is_over:
                await self.leave()
            try:
                await self.give_all_back()
            except EraOver:
                continue
            return


__all__ = ("Scheduler",)
