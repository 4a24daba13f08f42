"""What a simulated scheduler has, and how it makes a call: every way in which one may end."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.actors.tier_handles import Handle, LoadBack, Prefetch
from radixtide.components.api import LockReceipt, NodeHandle, Slots
from radixtide.components.request import Request
from radixtide.configs.errors import (
    ActorFailed,
    CacheClosed,
    CallTimeout,
    InvariantError,
    MailboxFull,
)
from radixtide.simulation.injector import InjectedError
from radixtide.simulation.oracle import Oracle
from radixtide.simulation.script import Prompt
from radixtide.simulation.world import World
from radixtide.tree.key import RadixKey

T = TypeVar("T")

NAMESPACES: Final[tuple[tuple[str | None, str | None], ...]] = (
    (None, None),
    ("a", None),
    (None, "a"),
    ("", "a"),
)
"""Close relatives on purpose: only the framing of their names keeps them apart."""

LETTERS: Final = 4
PAGES_MAX: Final = 8
"""Pages of the longest prompt."""
SLACK_S: Final = 1.0
TRIES: Final = 400
MS: Final = 1e-3

AFFECTED: Final = (CallTimeout, ActorFailed, MailboxFull, InjectedError)
"""What a call may raise where faults are."""


class EraOver(Exception):
    """The cache that a step was about is closed: nothing of what it had is held any more."""


@dataclass(eq=False)
class Answer:
    """How a call ended: with a value, an error, or in doubt (cancelled, or not answered in time).

    A call that ended in doubt has an error too, but for one that was cancelled.
    """

    value: Any = None
    error: BaseException | None = None
    doubt: bool = False

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None and not self.doubt


@dataclass(eq=False)
class Held:
    """A lock of the scheduler's own."""

    receipt: LockReceipt
    key: RadixKey | None
    length: int
    slots: Slots


@dataclass(eq=False)
class Load:
    """A load that is kept. ``over``: its end is known."""

    handle: LoadBack
    key: RadixKey
    over: bool = False


@dataclass(eq=False)
class Fetch:
    """A fetch that is kept."""

    handle: Prefetch
    key: RadixKey


@dataclass(eq=False)
class Live:
    """A running request. ``own``: its own slots, from what is cached on.

    ``lean``: some of its slots have none of the window's pool behind them. ``by_row``: its
    scheduler allocates for nobody and writes the row; ``spare``: slots for tokens to come;
    ``unsettled``: a load for it was not answered, and its undoing may still be on its way;
    ``states_unsettled``: the same of states that were asked for.
    """

    req: Request
    space: int
    bigram: bool
    own: list[int] = field(default_factory=list)
    lean: bool = False
    stateful: bool = True
    by_row: bool = False
    spare: list[int] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    unsettled: bool = False
    states_unsettled: bool = False

    @property
    def tokens(self) -> int:
        """Input and output."""
        return len(self.req.origin_input_ids) + len(self.req.output_ids)

    @property
    def covered(self) -> int:
        """Leading tokens that have slots."""
        return self.req.cache_protected_len + len(self.own)

    @property
    def holds(self) -> bool:
        """Whether the cache knows of it."""
        return self.req.lock is not None or bool(self.own)

    def key(self, length: int | None = None) -> RadixKey:
        """Return the key of its first tokens; of all."""
        return self.req.key(length, is_bigram=self.bigram)


def page_of(kind: str, number: int, at: int, page: int) -> tuple[int, ...]:
    """Return a page of a text: few letters, so that texts collide, and part inside of pages."""
    letter = zlib.crc32(f"{kind}/{number}/{at}".encode()) % LETTERS
    return (
        (1,) * page,
        (*(1,) * (page - 1), 2),
        (2,) * page,
        (3, *(2,) * (page - 1)),
    )[letter]


def pages_of(kind: str, number: int, first: int, count: int, page: int) -> tuple[int, ...]:
    """Return `count` pages of a text."""
    return tuple(
        token for at in range(first, first + count) for token in page_of(kind, number, at, page)
    )


class SchedulerBase:
    """What a scheduler has, and the calls it makes."""

    def __init__(self, world: World, number: int, rank: int = 0) -> None:
        self.world = world
        self.setup = world.setup
        self.number = number
        self.rank = rank
        self.page = world.setup.page_size
        self.name = f"s{number}"
        self.era = world.era
        self.started = 0
        self.step = 0
        self.say: list[str] = []
        self.alone = len(world.case.scripts) == 1
        self.forget()

    def forget(self) -> None:
        """Have nothing any more, of the cache that is open now."""
        self.era = self.world.era
        # A caller's own until it knows better: a call that is on its way when another cache takes
        # the place of this one must not get there, with rows and slots that are others' in it.
        self.cache: UnifiedRadixCache = self.world.caches[self.rank]
        self.live: list[Live] = []
        self.done: list[Live] = []
        self.waiting: list[tuple[int, tuple[int, ...]]] = []
        self.locks: list[Held] = []
        self.released: list[LockReceipt] = []
        self.nodes: list[tuple[NodeHandle, RadixKey, int]] = []
        self.loose: list[Slots] = []
        self.loose_states: list[int] = []
        self.windowless: set[int] = set()
        """Of ``loose``, those that may have no windows any more."""
        self.loads: list[Load] = []
        self.fetches: list[Fetch] = []
        self.pins: list[RadixKey] = []
        self.chosen = 0

    @property
    def is_over(self) -> bool:
        """Whether another cache has taken the place of this scheduler's, or is about to."""
        return self.world.era != self.era

    @property
    def oracle(self) -> Oracle:
        """The model; what the device still computes is there before it is asked."""
        self.world.sync()
        return self.world.oracle

    def has(self, component: str) -> bool:
        """Return whether the cache has a component."""
        return component in self.setup.components

    # -- calls ------------------------------------------------------------------------------

    async def call(
        self,
        what: str,
        make: Callable[[], Coroutine[Any, Any, Any]],
        *,
        may: tuple[type[BaseException], ...] = (),
        waits: bool = False,
        patience: int = 0,
        longer: float = 0.0,
    ) -> Answer:
        """Make a call and see how it ends; what it may not end in is a violation.

        `may`: errors that this very call may be answered with. `waits`: it may take longer than
        its timeout where transfers do. `patience`: its timeout in ms; 0: the configuration's.
        `longer`: seconds that it may take beyond that.

        Raises EraOver.
        """
        world = self.world
        await self.current()
        if self.setup.ranks > 1:
            patience = 0
        limit = patience * MS if patience else self.world.config.limits.call_timeout_s
        task = world.loop.create_task(self._made(make))
        world.calls[task] = None
        try:
            await self.wait_for(task, limit + longer + SLACK_S)
        except BaseException:
            # Nobody hears of it: the run ends, or these caches do.
            task.add_done_callback(lambda over: over.cancelled() or over.exception())
            raise
        del world.calls[task]
        if not task.done():
            if not self.is_over:
                self.wrong(f"{what}: hangs, with no answer after {limit + longer + SLACK_S:g} s")
            await drop_call(task)
            return Answer(doubt=True)
        answer = self._answer(what, task, may, waits or patience > 0)
        self.said(f"{what} {self._words(answer)}")
        if self.is_over:
            await drop_call(task)
            raise EraOver
        if answer.doubt:
            world.doubts += 1
        return answer

    async def wait_for(self, task: asyncio.Task[Any], seconds: float) -> None:
        """Wait for the answer of a call."""
        await asyncio.wait((task,), timeout=seconds)

    @staticmethod
    async def _made(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await make()

    async def current(self) -> None:
        """Wait until there is a cache; raise EraOver where it is another one."""
        await self.world.opened()
        if self.is_over:
            raise EraOver

    def _answer(
        self,
        what: str,
        task: asyncio.Task[Any],
        may: tuple[type[BaseException], ...],
        waits: bool,
    ) -> Answer:
        world = self.world
        if task.cancelled():
            if not world.faulty:
                self.wrong(f"{what}: was cancelled, by nobody")
            return Answer(doubt=True)
        error = task.exception()
        if error is None:
            return Answer(task.result())
        if self.is_over and isinstance(error, (CacheClosed, ActorFailed)):
            return Answer(error=error, doubt=True)
        if isinstance(error, may):
            return Answer(error=error)
        known = isinstance(error, AFFECTED) and not isinstance(error, InvariantError)
        if known and (world.faulty or (waits and isinstance(error, CallTimeout))):
            return Answer(error=error, doubt=isinstance(error, (CallTimeout, ActorFailed)))
        self.wrong(f"{what}: raised {type(error).__name__}: {error}")
        return Answer(error=error, doubt=True)

    async def persist(
        self,
        what: str,
        make: Callable[[], Coroutine[Any, Any, Any]],
        may: tuple[type[BaseException], ...] = (),
        longer: float = 0.0,
    ) -> Answer:
        """Make a call that may be made as often as it takes, until it is answered."""
        for tried in range(TRIES):
            answer = await self.call(what, make, may=may, waits=True, longer=longer)
            if not answer.doubt and not isinstance(answer.error, AFFECTED):
                return answer
            if self.world.violations:
                return answer
            await self.stand_up()
            # A mailbox may be full for a while; more and more time is left to it.
            await asyncio.sleep(MS * (1 + tried))
        self.wrong(f"{what}: not answered in {TRIES} tries: {answer.error!r}")
        return answer

    async def stand_up(self) -> None:
        """Where an actor that nothing goes without is down for good, take another cache."""
        actors = (await self.cache.stats()).actors
        if not actors["coordinator"].alive or not actors["full"].alive:
            self.said("an actor is down")
            await self.world.restart(hard=True)
            raise EraOver

    # -- what is said -------------------------------------------------------------------------

    def wrong(self, *violations: str) -> None:
        """Note violations of this step."""
        where = (
            f"step {self.step} ({self.name})"
            if self.setup.ranks == 1
            else (f"step {self.step} (rank {self.rank})")
        )
        self.world.found(*(f"{where}: {one}" for one in violations))

    def check(self, violations: Sequence[str]) -> None:
        """Note what the oracle has found."""
        if violations:
            self.wrong(*violations)

    def said(self, line: str) -> None:
        """Note an answer: the same for the same seed."""
        self.say.append(line)
        self.world.answered(f"{self.name}/{self.rank} {self.step} {line}\n")

    @staticmethod
    def _words(answer: Answer) -> str:
        if answer.error is not None:
            return type(answer.error).__name__
        if answer.doubt:
            return "cancelled"
        return words_of(answer.value)

    # -- keys and slots -------------------------------------------------------------------------

    def prompt(
        self, prompt: Prompt, known: Sequence[tuple[int, tuple[int, ...]]] = ()
    ) -> tuple[int, tuple[int, ...]]:
        """Return namespace and tokens of a prompt.

        `known`: what one that comes again is chosen from; by default what was cached lately.
        """
        page = self.page
        own = pages_of("branch", prompt.branch, 0, prompt.own % (PAGES_MAX + 1), page)
        tail = tuple(1 + (at + prompt.branch) % 2 for at in range(prompt.tail % page))
        recent = known or self.world.recent[self.rank]
        if prompt.again and recent:
            space, old = recent[-1 - (prompt.again - 1) % len(recent)]
            space = (prompt.space - 1) % len(NAMESPACES) if prompt.space else space
            if prompt.shared % 3:
                # What is kept, from a third of it on.
                kept = len(old) - (len(old) * (prompt.tail % 5)) // 8
                old = old[: kept if prompt.shared % 3 == 2 else max(kept // page * page, 1)]
            tokens = (*old, *own, *(tail if prompt.own else ()))
        else:
            space = prompt.space % len(NAMESPACES)
            shared = pages_of("family", prompt.family, 0, prompt.shared % (PAGES_MAX + 1), page)
            tokens = (*shared, *own, *tail)
        tokens = tokens[: PAGES_MAX * page + page // 2]
        least = 2 if self.setup.bigram else 1
        return space, (*tokens, *(1 for _ in range(least - len(tokens))))

    def key_of(self, space: int, tokens: Sequence[int]) -> RadixKey:
        """Return a key."""
        return RadixKey(list(tokens), *NAMESPACES[space], self.setup.bigram)

    def key(self, prompt: Prompt) -> RadixKey:
        """Return the key of a prompt."""
        return self.key_of(*self.prompt(prompt))

    def space_of(self, key: RadixKey) -> int:
        """Return the number of a key's namespace."""
        return NAMESPACES.index((key.extra_key, key.cache_salt))

    def note_node(self, node: NodeHandle, key: RadixKey, length: int) -> None:
        """Keep a node to be asked about later."""
        if length:
            self.nodes.append((node, key, length))
            del self.nodes[:-16]

    @staticmethod
    def slots_of(answer: Any) -> Slots:
        """Return slots as an array of their own."""
        # A tensor's own way: numpy 2 warns of the other one, and a warning is an error in tests.
        given = answer.numpy() if hasattr(answer, "numpy") else answer
        return np.array(given, dtype=np.int64).reshape(-1)


async def drop_call(task: asyncio.Task[Any]) -> None:
    """Give up a call, and what it was answered: nobody is there to let go of a handle."""
    task.cancel()
    await asyncio.wait((task,), timeout=SLACK_S)
    if not task.done() or task.cancelled() or task.exception() is not None:
        return
    if isinstance(task.result(), Handle):
        task.result()._closed = True  # or it would warn


def pick(things: Sequence[T], which: int) -> T | None:
    """Return one of `things`, or None when there are none."""
    return things[which % len(things)] if things else None


def words_of(value: Any) -> str:
    """Return an answer in words that are the same in every process."""
    if hasattr(value, "tolist"):
        return str(value.tolist())
    for name in ("device_indices", "indices", "inserted_len", "length", "pages", "pinned_len"):
        part = getattr(value, name, None)
        if part is not None:
            if hasattr(part, "tolist"):
                part = part.tolist()
            return f"{type(value).__name__} {part} {getattr(value, 'miss_reason', '')}"
    if isinstance(value, (int, str, bool, float)) or value is None:
        return str(value)
    return type(value).__name__
