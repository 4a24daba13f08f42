"""The feed of the live page: one look at the engine for all who watch, as often as it may cost.

There is no task behind it. Of those who wait for the next frame, the first one makes it, and the
others get the same bytes; when that one goes away, the next takes its place. So nothing is looked
at while nobody watches.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import Final

import anyio
import msgspec

from radixtide.components.api import CacheStats
from radixtide.configs.errors import RadixtideError
from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.live_view import Now, Numbers, Watched, now_of

PAUSE_MAX: Final = 20
"""Times the interval: the longest pause, however slow the last look was."""

TIMEOUT_S: Final = 2.0
"""How long a look waits for a cache that is busy; then the page goes on without it."""


class Feed:
    """Frames for the live page.

    A frame is two server-sent events: ``tree``, a TreePicture, left out for those who have that one
    already, and ``now``, a Now. They come every ``live_interval_s``; less often where a look takes
    longer than ``live_share_max`` of that time, so that all looks together take no more of it.

    Args:
        config: the server's limits.
        watched: returns what is looked at, or None while the model loads.
        phase, model: return where the server is in its life, and what the model is called.
    """

    def __init__(
        self,
        config: ServerConfig,
        watched: Callable[[], Watched | None],
        phase: Callable[[], str] = lambda: "ready",
        model: Callable[[], str] = lambda: "",
    ) -> None:
        self.config = config
        self.viewers = 0
        self.looks = 0
        self.look_s = 0.0
        self._watched = watched
        self._phase = phase
        self._model = model
        self._turn = anyio.Lock()
        self._frame = 0
        self._now = b""
        self._tree = b""
        self._tree_number = 0
        self._seen: object = None
        self._due = 0.0
        self._numbers = Numbers()

    def join(self) -> bool:
        """Count one more who watches, until :meth:`leave`; False where as many watch as may."""
        if self.viewers >= self.config.live_viewers_max:
            return False
        self.viewers += 1
        return True

    async def leave(self) -> None:
        """Count one less."""
        self.viewers -= 1

    @property
    def interval_s(self) -> float:
        """Time between two frames, as it is now."""
        least = self.config.live_interval_s
        return min(max(least, self.look_s / self.config.live_share_max), PAUSE_MAX * least)

    async def frames(self) -> AsyncGenerator[bytes]:
        """Yield frames as they are made, the first one at once, until the server ends."""
        seen = seen_tree = 0
        while self._phase() != "stopping":
            if self._frame == seen or self._is_old():
                async with self._turn:
                    # Meanwhile another one may have made it.
                    if self._frame == seen or self._is_old():
                        await self._make()
            seen = self._frame
            frame = self._now
            if self._tree_number != seen_tree:
                seen_tree = self._tree_number
                frame = self._tree + frame
            yield frame

    def _is_old(self) -> bool:
        """Whether the last frame is of a time when others watched."""
        return anyio.current_time() >= self._due

    async def _make(self) -> None:
        """Make the next frame, when its time has come."""
        pause = self._due - anyio.current_time()
        if pause > 0:
            await anyio.sleep(pause)
        now = await self._look()
        now.interval_s = self.interval_s
        now.look_s = self.look_s
        now.viewers = self.viewers
        self._now = _event("now", msgspec.json.encode(now))
        self._frame += 1
        self._due = anyio.current_time() + self.interval_s

    async def _look(self) -> Now:
        watched = self._watched()
        if watched is None:
            self._tree_number, self._seen = 0, None
            return Now(time.time(), self._phase(), self._model())
        try:
            with anyio.fail_after(TIMEOUT_S):
                stats = await watched.stats()
            now = now_of(watched, stats, self._numbers, self._model())
            now.phase = self._phase()
            # The tree is left alone where nothing was done with it.
            about = _about(watched, stats.cache)
            if about != self._seen or now.busy:
                await self._draw(watched)
            self._seen = about
        except (RadixtideError, TimeoutError) as error:
            self._seen = None
            return Now(time.time(), self._phase(), self._model(), trouble=type(error).__name__)
        return now

    async def _draw(self, watched: Watched) -> None:
        """Take a picture of the tree, and note how long the loop's thread worked at it."""
        began = time.thread_time()
        picture = await watched.cache.picture(self.config.live_nodes_max, timeout=TIMEOUT_S)
        tree = _event("tree", msgspec.json.encode(picture))
        self.look_s = time.thread_time() - began
        self.looks += 1
        if tree != self._tree or not self._tree_number:
            self._tree = tree
            self._tree_number = self._frame + 1


def _about(watched: Watched, stats: CacheStats | None) -> object:
    """Return what is another when anything was done with the tree."""
    if stats is None:
        return None
    sizes = stats.nodes, stats.receipts, stats.pinned, stats.generation
    return watched, sizes, stats.pools, stats.counters


def _event(name: str, data: bytes) -> bytes:
    """Return a server-sent event; JSON as it is made here has no line breaks."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


__all__ = ("Feed",)
