"""Ranks that agree on one loop, at drawn moments: what a group of processes does, without them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final

from radixtide.actors.agreement import Agreement, AgreementFailed, RanksDiverged
from radixtide.configs.errors import InvalidInput
from radixtide.simulation.decisions import Faults
from radixtide.simulation.dice import dice
from radixtide.simulation.loop import SimulatedLoop

TRIP_S: Final = 1e-3
"""What a rank says takes up to that on its way, and the answer on the way back."""
TIMEOUT_S: Final = 30.0
INT64: Final = 2**63


def agreements(
    loop: SimulatedLoop, ranks: int, faults: Faults | None = None, timeout_s: float = TIMEOUT_S
) -> list[SimulatedAgreement]:
    """Return the agreements of a new group, one a rank, in order.

    The moments at which ranks come and hear the answer are drawn from the stream "ranks" of the
    loop's seed. `faults`: asked how much later a rank comes. `timeout_s`: how long a rank waits for
    the others, in seconds of the loop's time.

    Raises:
        InvalidInput: no rank, or a time that is not positive.
    """
    if ranks < 1 or not timeout_s > 0:
        raise InvalidInput(f"ranks ({ranks}) and timeout_s ({timeout_s}) must be positive")
    group = _Group(loop, ranks, timeout_s, dice(loop.seed, "ranks"), faults)
    return group.members


class SimulatedAgreement(Agreement):
    """One rank of a group that :func:`agreements` made; as GlooAgreement, on one loop.

    Calls made at once take part in their order, one after the other. Once it has failed, no later
    call of the group works.
    """

    def __init__(self, group: _Group, rank: int) -> None:
        self.rank = rank
        self.ranks = group.ranks
        self.calls = 0
        """Calls that have come to the others, or are on their way there."""
        self._group = group
        self._closed = False
        self._waiting: deque[tuple[list[int], asyncio.Future[list[int]]]] = deque()

    async def minimum(self, values: list[int]) -> list[int]:
        """Return the element-wise minimum over all ranks; see :class:`Agreement`.

        Raises:
            InvalidInput: a value is no int64; nothing was said, and the others wait.
        """
        group = self._group
        if self._closed or group.broken is not None:
            raise AgreementFailed(group.broken or "the agreement is closed")
        try:
            fit = all(-INT64 <= value < INT64 for value in values)
        except TypeError:
            fit = False
        if not fit:
            raise InvalidInput(f"a value is no int64: {values}")
        answer: asyncio.Future[list[int]] = group.loop.create_future()
        self._waiting.append((list(values), answer))
        if len(self._waiting) == 1:
            self._go()
        cancelled: asyncio.CancelledError | None = None
        while not answer.done():
            try:
                await asyncio.wait((answer,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            # Looked at, so that it is not reported as an error that nobody heard of.
            answer.exception()
            raise cancelled
        return answer.result()

    def close(self) -> None:
        """Take part in nothing new; what is under way comes to its end."""
        self._closed = True

    @property
    def waiting(self) -> int:
        """Calls that have no answer yet."""
        return len(self._waiting)

    def _go(self) -> None:
        group = self._group
        late = 0.0 if group.faults is None else group.faults.skew(self.rank)
        self.calls += 1
        group.loop.call_later(
            late + TRIP_S * group.dice.random(),
            group.arrive,
            self.calls,
            self.rank,
            self._waiting[0][0],
        )

    def hear(self, answer: Sequence[int] | AgreementFailed) -> None:
        """Take the answer to the call that came first."""
        if not self._waiting:
            return
        _, future = self._waiting.popleft()
        if isinstance(answer, AgreementFailed):
            future.set_exception(answer)
        else:
            future.set_result(list(answer))
        if self._waiting and self._group.broken is None:
            self._go()


class _Group:
    """What the ranks have said."""

    def __init__(
        self, loop: SimulatedLoop, ranks: int, timeout_s: float, luck: Random, faults: Faults | None
    ) -> None:
        self.loop = loop
        self.ranks = ranks
        self.dice = luck
        self.faults = faults
        self.broken: str | None = None
        self.members = [SimulatedAgreement(self, rank) for rank in range(ranks)]
        self._timeout_s = timeout_s
        self._said: dict[int, dict[int, list[int]]] = {}
        self._deadlines: dict[int, asyncio.TimerHandle] = {}

    def arrive(self, number: int, rank: int, values: list[int]) -> None:
        """Take what a rank says in its call `number`."""
        if self.broken is not None:
            return
        said = self._said.setdefault(number, {})
        if not said:
            self._deadlines[number] = self.loop.call_later(self._timeout_s, self._fail, number)
        said[rank] = values
        if len(said) < self.ranks:
            return
        self._deadlines.pop(number).cancel()
        del self._said[number]
        lengths = [len(one) for one in said.values()]
        if min(lengths) == max(lengths):
            least = [min(column) for column in zip(*said.values(), strict=True)]
            for member in self.members:
                self._tell(member, least)
            return
        for member in self.members:
            told = (
                f"in call {number} one rank gave {min(lengths)} values, another {max(lengths)}; "
                f"rank {member.rank} gave {len(said[member.rank])}: the ranks must make the same "
                "calls with the same configuration"
            )
            self._tell(member, RanksDiverged(told))

    def _tell(self, member: SimulatedAgreement, answer: list[int] | AgreementFailed) -> None:
        self.loop.call_later(TRIP_S * self.dice.random(), member.hear, answer)

    def _fail(self, number: int) -> None:
        missing = [rank for rank in range(self.ranks) if rank not in self._said[number]]
        self.broken = (
            f"ranks {missing} of {self.ranks} did not come to call {number} within "
            f"{self._timeout_s:g} s; make a new group and a new cache on every rank"
        )
        for timer in self._deadlines.values():
            timer.cancel()
        for member in self.members:
            for _ in range(member.waiting):
                self._tell(member, AgreementFailed(self.broken))
