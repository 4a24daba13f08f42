"""Several ranks, each a process of its own, that talk through gloo on the loopback.

A scenario is a coroutine function of a module of ``tests/support``; each rank runs it once, with a
group of its own, and reports what it saw::

    first, second = run_ranks(["support.agreement_scenarios:minima"], tmp_path)
    assert first["support.agreement_scenarios:minima"] == second[...]

Run as ``python -m support.ranks ARGUMENTS`` this module is a rank.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from radixtide.actors.agreement import GlooAgreement

LOOPBACK: Final = "lo" if sys.platform == "linux" else "lo0"
TESTS: Final = Path(__file__).resolve().parents[1]

Reports = dict[str, list[Any]]
"""What a rank reported, by scenario."""


@dataclass
class Rank:
    """One rank, as a scenario sees it. ``options``: what the test gave, the same on each rank."""

    rank: int
    ranks: int
    group: dist.ProcessGroup
    folder: Path
    options: dict[str, Any]
    reports: list[Any] = field(default_factory=list)

    def agreement(self, **fields: Any) -> GlooAgreement:
        """Return an agreement of all ranks."""
        return GlooAgreement(self.group, **{"timeout_s": 20.0, **fields})

    def report(self, what: Any) -> None:
        """Add something that JSON can say to what this rank saw."""
        self.reports.append(what)

    def signal(self, name: str) -> None:
        """Let the other ranks go on that wait for `name`."""
        (self.folder / name).touch()

    async def wait_for(self, name: str) -> None:
        """Wait until a rank has signalled `name`; the loop goes on meanwhile."""
        signal = self.folder / name
        # No event crosses processes.
        while not await asyncio.to_thread(signal.exists):  # noqa: ASYNC110
            await asyncio.sleep(0)


def run_ranks(
    scenarios: Sequence[str],
    folder: Path,
    *,
    ranks: int = 2,
    timeout_s: float = 100.0,
    dying: dict[int, int] | None = None,
    **options: Any,
) -> list[Reports]:
    """Run each ``module:function`` on `ranks` ranks, and return what they reported, by rank.

    `folder` is empty. `dying`: exit status by rank, of those that are to die; any other status than
    these, or 0, fails the test with what that rank wrote.
    """
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", ""))),
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "OMP_NUM_THREADS": "1",
    }
    processes = []
    for rank in range(ranks):
        arguments = json.dumps([list(scenarios), rank, ranks, str(folder), options])
        command = [sys.executable, "-m", "support.ranks", arguments]
        with (folder / f"said {rank}").open("wb") as said:
            processes.append(subprocess.Popen(command, env=env, stdout=said, stderr=said))
    try:
        for process in processes:
            process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        said_text = (folder / f"said {rank}").read_text()
        wanted = (dying or {}).get(rank, 0)
        assert process.returncode == wanted, f"rank {rank}: {process.returncode}\n{said_text}"
    files = [folder / f"reports {rank}" for rank in range(ranks)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files]


def difference(one: Any, other: Any, where: str = "") -> str:
    """Return where two reports differ first; empty where they are the same."""
    if type(one) is type(other) and isinstance(one, dict):
        keys = {**one, **other}
        parts = [(f"{where}[{key!r}]", one.get(key), other.get(key)) for key in keys]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        parts = [(f"{where}[{at}]", *pair) for at, pair in enumerate(zip(one, other, strict=True))]
    else:
        return "" if one == other else f"{where}: {one!r} and {other!r}"
    found = (difference(mine, its, place) for place, mine, its in parts)
    return next((text for text in found if text), "")


def main(arguments: str) -> None:
    """Be one rank."""
    scenarios, number, ranks, folder, options = json.loads(arguments)
    store = Path(folder) / "store"
    dist.init_process_group("gloo", init_method=store.as_uri(), rank=number, world_size=ranks)
    reports: Reports = {}
    for scenario in scenarios:
        module, _, function = scenario.partition(":")
        run: Callable[[Rank], Coroutine[Any, Any, None]] = getattr(
            importlib.import_module(module), function
        )
        place = Path(folder) / function
        place.mkdir(exist_ok=True)
        group = dist.new_group(backend="gloo")
        assert group is not None
        rank = Rank(number, ranks, group, place, options)
        asyncio.run(run(rank))
        reports[scenario] = rank.reports
        (Path(folder) / f"reports {number}").write_text(json.dumps(reports))
        if options.get("survivor"):
            os._exit(0)
    # A rank that closed its connections while another still reads would look like one that died.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
