"""Small actors and a bare actor system, for tests of the runtime alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from radixtide.actors.actor import Actor, Conversation, Handler
from radixtide.actors.cell import Cell
from radixtide.actors.conversing import ConversingCell
from radixtide.actors.messages import Apply, Plan
from radixtide.actors.system import ActorSystem, PendingReply
from radixtide.configs.errors import InvalidInput
from radixtide.configs.schema import LimitsConfig


class Note(Apply, frozen=True, tag=True):
    """Write `text` down. Reply: how many texts there are."""

    text: str


class Look(Plan, frozen=True, tag=True):
    """Ask for all texts; changes nothing."""


class Refuse(Plan, frozen=True, tag=True):
    """Is refused with InvalidInput."""


class Boom(Plan, frozen=True, tag=True):
    """Crashes its handler the first `times` times, then is noted as `text`."""

    text: str = "boom"
    times: int = 1_000_000


class Grab(Plan, frozen=True, tag=True):
    """Take one token; the reply owns it."""


class PutBack(Apply, frozen=True, tag=True):
    """Give a token back."""

    token: int


class Relay(Plan, frozen=True, tag=True):
    """Boss: send `messages` to its first keeper, one yield each. Reply: the replies."""

    messages: tuple[Any, ...]


class RelayAll(Plan, frozen=True, tag=True):
    """Boss: send `message` to every keeper in one yield. Reply: the replies."""

    message: Any


class CrashOnReply(Plan, frozen=True, tag=True):
    """Boss: send `message` to the first keeper, then crash the first `times` times."""

    message: Any
    times: int = 1_000_000


class Planted(Exception):
    """A planted crash: no error of the library's."""


class Keeper(Actor):
    """Keeps texts and tokens; plain handlers."""

    converses = False

    def __init__(self, name: str = "keeper", log: list[str] | None = None) -> None:
        self.name = name
        self.texts: list[str] = []
        self.free = [3, 2, 1]
        self.log: list[str] = [] if log is None else log
        self.booms = 0
        self.restarted_with: list[BaseException] = []

    def handlers(self) -> Mapping[type, Handler]:
        return {
            Note: self.note,
            Look: lambda _: list(self.texts),
            Refuse: self.refuse,
            Boom: self.boom,
            Grab: lambda _: self.free.pop(),
            PutBack: lambda m: self.free.append(m.token),
        }

    def on_start(self) -> None:
        self.log.append(f"{self.name} starts")

    def on_stop(self) -> None:
        self.log.append(f"{self.name} stops")

    def on_restart(self, error: BaseException) -> None:
        self.restarted_with.append(error)

    def give_back(self, message: Any, reply: Any) -> Any:
        return PutBack(reply) if isinstance(message, Grab) else None

    def note(self, m: Note) -> int:
        self.texts.append(m.text)
        self.log.append(f"{self.name} notes {m.text}")
        return len(self.texts)

    def refuse(self, m: Refuse) -> None:
        raise InvalidInput("refused on purpose")

    def boom(self, m: Boom) -> str:
        self.booms += 1
        if self.booms <= m.times:
            raise Planted(m.text)
        self.texts.append(m.text)
        return m.text


class Boss(Keeper):
    """Converses with keepers; also keeps texts of its own."""

    converses = True

    def __init__(
        self, keepers: list[Cell], log: list[str] | None = None, name: str = "boss"
    ) -> None:
        super().__init__(name, log)
        self.keepers = keepers

    def handlers(self) -> Mapping[type, Handler]:
        return {
            **super().handlers(),
            Relay: self.relay,
            RelayAll: self.relay_all,
            CrashOnReply: self.crash_on_reply,
        }

    def relay(self, m: Relay) -> Conversation:
        replies = []
        for message in m.messages:
            reply = yield self.keepers[0], message
            replies.append(reply)
        self.texts.append("relayed")
        return replies

    def relay_all(self, m: RelayAll) -> Conversation:
        replies = yield [(keeper, m.message) for keeper in self.keepers]
        self.texts.append("relayed all")
        return replies

    def crash_on_reply(self, m: CrashOnReply) -> Conversation:
        yield self.keepers[0], m.message
        self.booms += 1
        if self.booms <= m.times:
            raise Planted("after the reply")
        return "recovered"


class Stage:
    """An actor system with some keepers and a boss over them.

    Keepers start first. `direct` is the mode of delivery.
    """

    def __init__(self, direct: bool, keepers: int = 1, **limits: Any) -> None:
        self.log: list[str] = []
        self.system = ActorSystem(asyncio.get_running_loop(), LimitsConfig(**limits), direct)
        self.keepers = [Keeper(f"keeper{at or ''}", self.log) for at in range(keepers)]
        self.cells = [self.system.spawn(keeper) for keeper in self.keepers]
        self.boss_actor = Boss(self.cells, self.log)
        boss = self.system.spawn(self.boss_actor)
        assert isinstance(boss, ConversingCell)
        self.boss = boss

    @property
    def keeper(self) -> Keeper:
        """The first keeper."""
        return self.keepers[0]

    @property
    def cell(self) -> Cell:
        """The first keeper's cell."""
        return self.cells[0]

    async def ask(
        self, cell: Cell, message: Any, timeout: float = 20.0, gives: bool = False
    ) -> Any:
        """Ask and await the reply."""
        reply = self.system.ask(cell, message, timeout, gives)
        if isinstance(reply, PendingReply):
            return await reply.wait()
        return reply

    async def settled(self) -> None:
        """Let the loop run until no message waits and no conversation runs."""
        await until(lambda: self.system.quiet)


MakeStage = Callable[..., Stage]
"""The type of the ``make_stage`` fixture."""


async def turns(count: int) -> None:
    """Let the loop run `count` turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], limit: int = 100_000) -> None:
    """Let the loop run until `condition` holds; fail when it does not within `limit` turns."""
    for _ in range(limit):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not come true")
