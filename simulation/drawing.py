"""Scripts drawn from a seed: which steps, how often, and about which prompts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from radixtide.simulation import script as s
from radixtide.simulation.dice import dice
from radixtide.simulation.setup import Setup

Maker = Callable[[Random], s.AnyStep]

FAMILIES: Final = 3
BRANCHES: Final = 4
LATELY: Final = 0.85
"""Share of prompts that were cached lately, of those that are looked for below the device."""
HOSTILE_KINDS: Final = 10
_SPACES: Final = (0, 0, 0, 0, 0, 1, 1, 2, 3)


def _patience(luck: Random) -> int:
    return luck.randrange(1, 12) if not luck.randrange(14) else 0


def draw_prompt(luck: Random, lately: float = 0.6) -> s.Prompt:
    """Return a prompt: often one that was cached `lately`, or one that begins as others do."""
    if luck.random() < lately:
        keep = luck.choice((0, 0, 0, 0, 1, 2))
        own = luck.randrange(4) if luck.randrange(2) else 0
        space = luck.choice(_SPACES) + 1 if not luck.randrange(12) else 0
        return s.Prompt(
            again=1 + luck.randrange(8),
            shared=keep,
            branch=luck.randrange(BRANCHES),
            own=own,
            tail=luck.randrange(16),
            space=space,
        )
    return s.Prompt(
        luck.randrange(FAMILIES),
        luck.randrange(6),
        luck.randrange(BRANCHES),
        luck.randrange(4),
        luck.randrange(16),
        luck.choice(_SPACES),
    )


def _match(luck: Random) -> s.AnyStep:
    return s.Match(
        prompt=draw_prompt(luck), lock=int(not luck.randrange(3)), patience=_patience(luck)
    )


def _insert(luck: Random) -> s.AnyStep:
    return s.Insert(
        prompt=draw_prompt(luck),
        below=int(not luck.randrange(3)),
        window=luck.randrange(6) if not luck.randrange(3) else 0,
        state=int(luck.randrange(4) > 0),
        evicted=luck.randrange(5) if not luck.randrange(4) else 0,
        priority=luck.randrange(3),
        ready=luck.randrange(1, 6) if not luck.randrange(6) else 0,
        patience=_patience(luck),
    )


def _start(luck: Random) -> s.AnyStep:
    return s.Start(
        prompt=draw_prompt(luck),
        row=luck.choice((0, 0, 0, 1, 1, 1, 2)),
        cow=int(luck.randrange(3) > 0),
        fetch=luck.choice((0, 0, 1, 3)),
        load=luck.choice((0, 1, 1, 3, 3)),
        lazy=int(not luck.randrange(4)),
        priority=luck.randrange(3),
        waiting=luck.randrange(2),
        patience=_patience(luck),
    )


def _extend(luck: Random) -> s.AnyStep:
    return s.Extend(
        which=luck.randrange(8),
        tokens=luck.choice((0, 1, 1, 2, 3, 5, 9, 17)),
        part=luck.randrange(1, 9) if not luck.randrange(5) else 0,
        window=luck.randrange(1, 6) if not luck.randrange(8) else 0,
        letter=luck.randrange(2),
        patience=_patience(luck),
    )


def _chunk(luck: Random) -> s.AnyStep:
    return s.Chunk(
        which=luck.randrange(8),
        short=luck.randrange(1, 9) if not luck.randrange(3) else 0,
        insert=int(luck.randrange(10) > 0),
        ready=luck.randrange(1, 6) if not luck.randrange(8) else 0,
        patience=_patience(luck),
    )


def _finish(luck: Random) -> s.AnyStep:
    return s.Finish(
        which=luck.randrange(8),
        short=luck.randrange(1, 9) if not luck.randrange(3) else 0,
        insert=int(luck.randrange(8) > 0),
        ready=luck.randrange(1, 6) if not luck.randrange(8) else 0,
        patience=_patience(luck),
    )


def _evict(luck: Random) -> s.AnyStep:
    if not luck.randrange(8):
        return s.Evict(full=30, window=30, states=30)
    which = luck.randrange(4)
    return s.Evict(
        full=1 + luck.randrange(5) if which in (0, 3) else 0,
        window=1 + luck.randrange(5) if which in (1, 3) else 0,
        states=1 + luck.randrange(3) if which in (2, 3) else 0,
    )


def _load_back(luck: Random) -> s.AnyStep:
    return s.LoadBack(
        prompt=draw_prompt(luck, LATELY),
        way=luck.randrange(5),
        twice=int(not luck.randrange(4)),
        patience=_patience(luck),
    )


_EVERYWHERE: Final[tuple[tuple[int, Maker], ...]] = (
    (90, _match),
    (130, _insert),
    (40, lambda luck: s.Allocate(tokens=luck.randrange(24), window=luck.choice((0, 0, 1, 2)),
                                 states=luck.randrange(3), patience=_patience(luck))),
    (1, lambda luck: s.Allocate(tokens=10_000)),
    (40, lambda luck: s.Free(which=luck.randrange(8), count=luck.randrange(1, 4),
                             what=luck.choice((0, 0, 0, 1, 1, 2)),
                             after=luck.randrange(6) if not luck.randrange(3) else 0)),
    (50, _evict),
    (20, lambda luck: s.Lock(which=luck.randrange(16), patience=_patience(luck))),
    (80, lambda luck: s.Unlock(which=luck.randrange(8))),
    (20, lambda luck: s.DropWindow(which=luck.randrange(8), request=luck.randrange(2))),
    (12, lambda luck: s.Hold(prompt=draw_prompt(luck), pause=luck.randrange(5),
                             leave=int(not luck.randrange(3)))),
    (15, lambda luck: s.Indices(which=luck.randrange(16), component=luck.randrange(3))),
    (8, lambda luck: s.Paired(which=luck.randrange(8))),
    (25, lambda luck: s.Pin(prompt=draw_prompt(luck), ttl=luck.choice((5, 50, 1000, 5000)))),
    (8, lambda luck: s.Unpin(which=luck.randrange(8))),
    (110, _start),
    (140, _extend),
    (70, _chunk),
    (70, _finish),
    (30, lambda luck: s.Abort(which=luck.randrange(8), again=luck.randrange(2),
                              after=luck.randrange(6) if not luck.randrange(3) else 0)),
    (12, lambda luck: s.Retract(which=luck.randrange(8))),
    (25, lambda luck: s.ReleaseWindow(which=luck.randrange(8))),
    (6, lambda luck: s.Reset(clean=int(luck.randrange(4) > 0), wait=luck.randrange(9))),
    (8, lambda luck: s.Stats(audit=luck.randrange(2), tree=luck.randrange(2))),
    (30, lambda luck: s.Pause(ms=luck.choice((1, 1, 2, 5, 20, 100)))),
    (25, lambda luck: s.Hostile(kind=luck.randrange(HOSTILE_KINDS), which=luck.randrange(8))),
    (1, lambda luck: s.Restart(hard=luck.randrange(2))),
)  # fmt: skip

_WITH_HOST: Final[tuple[tuple[int, Maker], ...]] = (
    (110, _load_back),
    (40, lambda luck: s.CloseLoad(which=luck.randrange(8), wait=luck.randrange(2))),
    (12, lambda luck: s.Drain(patience=_patience(luck))),
    (12, lambda luck: s.Flush(tier=luck.choice((0, 0, 1)), wait=luck.randrange(9))),
    (60, lambda luck: s.Sink(deep=luck.randrange(2))),
    (12, lambda luck: s.Evict(full=30, window=30, states=30)),
)

_WITH_STORAGE: Final[tuple[tuple[int, Maker], ...]] = (
    (80, lambda luck: s.Prefetch(prompt=draw_prompt(luck, LATELY), way=luck.choice((0, 0, 0, 1, 2)),
                                 deep=int(not luck.randrange(4)),
                                 patience=_patience(luck))),
    (30, lambda luck: s.CloseFetch(which=luck.randrange(8), wait=luck.randrange(2))),
    (14, lambda luck: s.Flush(tier=luck.choice((1, 1, 1, 1, 1, 2)), wait=luck.randrange(9))),
    (2, lambda _: s.Detach()),
    (12, lambda _: s.Sink(deep=1)),
    (40, _load_back),
    (4, lambda luck: s.Attach(fresh=int(not luck.randrange(4)),
                              weights=int(not luck.randrange(3)))),
    (3, lambda luck: s.Restart(hard=luck.randrange(2))),
)  # fmt: skip

_WITH_RANKS: Final[tuple[tuple[int, Maker], ...]] = ((260, lambda _: s.Agree()),)


def draw_scripts(seed: int, setup: Setup, steps: int) -> tuple[s.Script, ...]:
    """Return a script for each scheduler of `setup`, `steps` steps in all. Cost O(steps)."""
    luck = dice(seed, "script")
    table = [*_EVERYWHERE]
    if setup.host:
        table += _WITH_HOST
    if setup.storage:
        table += _WITH_STORAGE
    if setup.ranks > 1:
        table += _WITH_RANKS
    makers = [make for _, make in table]
    chosen = luck.choices(makers, [weight for weight, _ in table], k=steps)
    drawn = [make(luck) for make in chosen]
    # Dealt in turn, so that all schedulers have as many, and of all kinds.
    return tuple(tuple(drawn[at :: setup.schedulers]) for at in range(setup.schedulers))
