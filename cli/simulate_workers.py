"""Processes that run seeds side by side; one that dies or hangs is named with its seed.

A pool of the standard library loses all that is under way when one of its processes dies, and tells
of none which task it had. Here each process has one task at a time, by a pipe of its own.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Final, Self

import msgspec

from radixtide.cli.simulate_tasks import (
    Answer,
    MakeSmall,
    Ran,
    Ready,
    RunSeed,
    Small,
    Task,
    lost,
)

START_S: Final = 120.0
"""What a process gets to start: to load PyTorch, on a machine where many do so at once."""

GRACE_S: Final = 30.0
"""What a process gets beyond the limit of its task, which it watches itself."""

Target = Callable[[Connection], None]

_SPAWN: Final = multiprocessing.get_context("spawn")
_encode: Final = msgspec.msgpack.Encoder().encode
_task: Final = msgspec.msgpack.Decoder(Task)
_answer: Final = msgspec.msgpack.Decoder(Answer)


def work(pipe: Connection) -> None:
    """Answer tasks until the pipe is closed: what a process does."""
    import torch

    from radixtide.cli.simulate_jobs import make_small, run_seed

    # The others have the other cores.
    torch.set_num_threads(1)
    pipe.send_bytes(_encode(Ready()))
    while True:
        try:
            task = _task.decode(pipe.recv_bytes())
        except EOFError:
            return
        if isinstance(task, RunSeed):
            answer: Answer = run_seed(task)
        else:
            answer = make_small(task, lambda smaller: pipe.send_bytes(_encode(smaller)))
        pipe.send_bytes(_encode(answer))


class _Worker:
    """A process, its pipe, and what it is at."""

    def __init__(self, target: Target) -> None:
        self.pipe, far = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=target, args=(far,), daemon=True)
        self.task: Task | None = None
        self.ready = False
        self.deadline = 0.0
        self._limit_s = 0.0
        # Ctrl-C reaches the whole group; who answers it is the command, which ends the others.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        far.close()

    def give(self, task: Task, limit_s: float) -> None:
        self.task, self._limit_s = task, limit_s
        self.deadline = monotonic() + limit_s + (0.0 if self.ready else START_S)
        try:
            self.pipe.send_bytes(_encode(task))
        except OSError:
            pass  # it is dead: who waits for its answer finds out

    def answer(self) -> Answer | None:
        """Return what it has answered; None where it is dead. Only when it has answered or died."""
        try:
            answer = _answer.decode(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join()
            return None
        if isinstance(answer, Ready):
            self.ready = True
            self.deadline = monotonic() + self._limit_s
        return answer

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()
        self.process.close()


class Workers:
    """At most `count` processes, started when there is something for them to do.

    A context manager: at its end all are ended, whatever they are at. `target` is what each runs,
    with its end of a pipe.
    """

    def __init__(self, count: int, target: Target = work, grace_s: float = GRACE_S) -> None:
        self._count = count
        self._target = target
        self._grace_s = grace_s
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._idle, *self._busy):
            worker.end()
        self._idle.clear()
        self._busy.clear()

    def run(self, jobs: Iterable[RunSeed]) -> Iterator[Ran]:
        """Yield what came of each job, in the order in which they end."""
        waiting = iter(jobs)
        while True:
            while len(self._busy) < self._count and (job := next(waiting, None)) is not None:
                self._start(job, job.limit_s)
            if not self._busy:
                return
            for worker, answer in self._answers():
                task = worker.task
                assert isinstance(task, RunSeed)
                if isinstance(answer, Ran):
                    yield answer
                else:
                    assert isinstance(answer, str)
                    yield lost(task.seed, answer)

    def make_small(self, task: MakeSmall, told: Callable[[Small], None]) -> Small | None:
        """Return the smallest case that was found; None where the process died before any."""
        best = None
        # One trial may be under way when the time is over.
        self._start(task, task.seconds + task.job.limit_s)
        while self._busy:
            for _, answer in self._answers():
                if isinstance(answer, Small):
                    best = answer
                    told(answer)
        return best

    def _start(self, task: Task, limit_s: float) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._target)
        self._busy.append(worker)
        worker.give(task, limit_s + self._grace_s)

    def _answers(self) -> Iterator[tuple[_Worker, Answer | str]]:
        """Wait, then yield what has come: answers, or why there will be none."""
        first = min(worker.deadline for worker in self._busy)
        ready = wait([worker.pipe for worker in self._busy], max(0.0, first - monotonic()))
        for worker in list(self._busy):
            if worker.pipe in ready:
                answer = worker.answer()
                if answer is None:
                    told = f"the process that ran it died: {_how(worker.process.exitcode)}"
                    self._drop(worker)
                    yield worker, told
                elif not isinstance(answer, Ready):
                    if not (isinstance(answer, Small) and not answer.done):
                        self._busy.remove(worker)
                        self._idle.append(worker)
                    yield worker, answer
            elif monotonic() >= worker.deadline:
                self._drop(worker)
                yield worker, "hangs: the process that ran it did not answer and was ended"

    def _drop(self, worker: _Worker) -> None:
        self._busy.remove(worker)
        worker.end()


def _how(code: int | None) -> str:
    """Return how a process ended, from its exit code."""
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        more = ", perhaps out of memory" if sys.platform != "win32" and name == "SIGKILL" else ""
        return f"{name}{more}"
    return f"exit status {code}"


__all__ = ("Workers", "work")
