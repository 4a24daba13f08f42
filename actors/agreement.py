"""How several ranks agree: one collective a step, and the least of what they say counts.

In tensor parallelism every rank runs the same cache on the same calls. What differs between ranks
(which copies are done, how much host memory was free, which deadlines are over) may take effect
only when all of them know it. So each rank packs what it saw into a vector of counts, and all act
on the element-wise minimum. A rank never acts on what it alone has seen.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from radixtide.configs.errors import InvalidInput, RadixtideError

HEAD: Final = 4
"""Elements in front of a vector: number of the call and length, each with its negative.

The minimum of a number's negative is its maximum, so one collective tells whether all agree on it.
"""


class AgreementFailed(RadixtideError):
    """The ranks can not agree: one is gone or too late. No later agreement of the group works."""


class RanksDiverged(AgreementFailed):
    """The ranks asked for different things, so they do not run the same calls. All ranks get it."""


class Agreement(ABC):
    """What a cache needs of the other ranks. ``rank`` of ``ranks``, from 0."""

    rank: int
    ranks: int

    @abstractmethod
    async def minimum(self, values: list[int]) -> list[int]:
        """Return the element-wise minimum of what all ranks gave, the same on each.

        Every rank must call it, equally often and with equally many values. A call that is
        cancelled takes part all the same, since the others count on it, and raises CancelledError
        only when that is over: its answer is lost, so let a task wait for it that nobody cancels.

        Raises:
            AgreementFailed: a rank is gone, or did not come by the deadline.
            RanksDiverged: the ranks gave different numbers of values.
        """

    def close(self) -> None:  # noqa: B027  # most have nothing to give back
        """Give back what it holds; the group itself stays its maker's. Idempotent."""


class Alone(Agreement):
    """One rank: it agrees with itself at once."""

    rank = 0
    ranks = 1

    async def minimum(self, values: list[int]) -> list[int]:
        """Return the values themselves, in a list of its own."""
        return list(values)


class GlooAgreement(Agreement):
    """Ranks of a ``torch.distributed`` group that has gloo for tensors on the CPU.

    ``group``: None is the default group. A cache needs one that nothing else uses at the same time:
    ``torch.distributed.new_group(backend="gloo")``. ``timeout_s``: how long a rank waits for the
    others, in seconds. ``width``: the most values of a call. The tensor always has that size, so
    ranks that give different numbers of values find out, and none of them hangs.

    The collective runs on a thread of its own; calls made at once run in the order of the calls.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float = 30.0,
        width: int = 256,
    ) -> None:
        """Take part in `group`; talks to nobody yet.

        Raises:
            InvalidInput: there is no such group, this process is not in it, it has no gloo, or
                `timeout_s` or `width` is not positive.
        """
        if not timeout_s > 0 or width < 1:
            raise InvalidInput(f"timeout_s ({timeout_s}) and width ({width}) must be positive")
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidInput("call torch.distributed.init_process_group() before GlooAgreement()")
        chosen = dist.group.WORLD if group is None else group
        if chosen is None or dist.get_rank(chosen) < 0:
            raise InvalidInput("this process is no rank of the group")
        backends = dist.get_backend_config(chosen)
        if "cpu:gloo" not in backends:
            raise InvalidInput(
                f"the group has {backends}; an agreement needs gloo for tensors on the CPU: "
                'torch.distributed.new_group(backend="gloo")'
            )
        self.rank = dist.get_rank(chosen)
        self.ranks = dist.get_world_size(chosen)
        self.width = width
        self._group = chosen
        self._deadline = timedelta(seconds=timeout_s)
        self._calls = 0
        self._broken: str | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="radixtide-agreement")

    async def minimum(self, values: list[int]) -> list[int]:
        """Return the element-wise minimum over all ranks; see :class:`Agreement`.

        Raises:
            InvalidInput: there are more than ``width`` values, or one is no int64; nothing was
                sent, and the other ranks wait for this one until their deadline.
        """
        if self._broken is not None:
            raise AgreementFailed(self._broken)
        vector = self._pack(values)
        loop = asyncio.get_running_loop()
        collective = loop.run_in_executor(self._thread, self._reduce, vector)
        cancelled: asyncio.CancelledError | None = None
        while not collective.done():
            try:
                await asyncio.wait((collective,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            # Looked at, so that it is not reported as an error that nobody heard of.
            collective.exception()
            raise cancelled
        return self._unpack(collective.result(), len(values))

    def close(self) -> None:
        """Let the thread end once what it does is over."""
        self._broken = self._broken or "the agreement is closed"
        self._thread.shutdown(wait=False)

    def _pack(self, values: Sequence[int]) -> torch.Tensor:
        count = len(values)
        if count > self.width:
            raise InvalidInput(f"{count} values; this agreement takes {self.width} (width)")
        number = self._calls + 1
        vector = torch.zeros(HEAD + self.width, dtype=torch.int64)
        try:
            vector[: HEAD + count] = torch.tensor(
                [number, -number, count, -count, *values], dtype=torch.int64
            )
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidInput(f"a value is no int64: {error}") from error
        self._calls = number
        return vector

    def _reduce(self, vector: torch.Tensor) -> list[int]:
        """Run the collective, on the thread; returns the whole vector."""
        if self._broken is not None:
            raise AgreementFailed(self._broken)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        options.timeout = self._deadline
        try:
            self._group.allreduce([vector], options).wait()
        except RuntimeError as error:
            # Gloo has closed its connections then: whoever tried again would wait for nobody.
            self._broken = (
                f"rank {self.rank} of {self.ranks} could not agree with the others: one is gone, "
                f"or did not come within {self._deadline.total_seconds():g} s ({error}); make a "
                "new group and a new cache on every rank"
            )
            raise AgreementFailed(self._broken) from error
        reduced: list[int] = vector.tolist()
        return reduced

    def _unpack(self, reduced: list[int], count: int) -> list[int]:
        first, last, fewest, most = reduced[0], -reduced[1], reduced[2], -reduced[3]
        if first != last:
            raise RanksDiverged(
                f"one rank is at its call {first}, another at its call {last}: make the "
                "agreements of a group together, and use a group for nothing else"
            )
        if fewest != most:
            raise RanksDiverged(
                f"in call {first} one rank gave {fewest} values, another {most}; rank {self.rank} "
                f"gave {count}: the ranks must make the same calls with the same configuration"
            )
        return reduced[HEAD : HEAD + count]
