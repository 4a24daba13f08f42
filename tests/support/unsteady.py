"""A worker of ``radixtide simulate`` that does not live up to it: by the seed, it dies or hangs."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from radixtide.cli.simulate_tasks import MakeSmall, Ran, Ready, RunSeed, Small, Task
from radixtide.simulation.case import draw_case

DIES: Final = 3
EXITS: Final = 5
HANGS: Final = 7
DIES_SMALL: Final = 9
"""Dies while it is made small, after the first smaller case."""

_task: Final = msgspec.msgpack.Decoder(Task)
_encode: Final = msgspec.msgpack.Encoder().encode


def work(pipe: Connection) -> None:
    """Answer tasks, but for those of the seeds above."""
    pipe.send_bytes(_encode(Ready()))
    while True:
        try:
            task = _task.decode(pipe.recv_bytes())
        except EOFError:
            return
        if isinstance(task, RunSeed):
            _misbehave(task.seed)
            # Which process it was, so that a test sees that another took over.
            pipe.send_bytes(_encode(Ran(seed=task.seed, digest=str(os.getpid()))))
        else:
            _make_small(pipe, task)


def _misbehave(seed: int) -> None:
    if seed == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == EXITS:
        sys.stdout.flush()
        os._exit(17)
    while seed == HANGS:
        signal.pause()


def _make_small(pipe: Connection, task: MakeSmall) -> None:
    job = task.job
    for length in (8, 4):
        case = draw_case(job.seed, length, job.plan)
        small = Small(case=case, violations=task.violations, runs=8 - length, done=length == 4)
        pipe.send_bytes(_encode(small))
        if job.seed == DIES_SMALL:
            os._exit(1)
