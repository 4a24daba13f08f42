"""The pytest plugin: tests on a simulated loop, and caches under faults.

It is loaded by every pytest run of an environment that has Radixtide, so it imports nothing but
pytest until a test asks for something.

* ``@pytest.mark.simulated(seeds=20, faults="light")``: an ``async def`` test runs on a
  deterministic loop in virtual time, once for each seed, which its id names. ``seed=7`` runs one;
  ``seeds`` is a number of seeds from 0 on, or the seeds. ``order="fifo"`` keeps asyncio's order.
* ``faulty_cache``: opens caches under the marker's faults, or others, and audits them.
* ``virtual_clock``: the time of that loop. ``journal``: writes all that happens to a file, whose
  path is shown when the test fails. ``oracle``: makes an oracle for a cache. ``simulated_seed``:
  the seed of this run.

It needs no other plugin, and minds none: a marked test is run here, not by pytest-asyncio or anyio.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache
    from radixtide.simulation.journal import JournalWriter
    from radixtide.simulation.loop import SimulatedLoop
    from radixtide.simulation.oracle import Oracle
    from radixtide.testing.caches import FaultyCaches

MARK: Final = "simulated"
OPTIONS: Final = ("seed", "seeds", "faults", "order")
SIMULATED: Final = "_radixtide_simulated"
"""Attribute of the plain function that stands for a marked coroutine function."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "simulated(seed=0, seeds=None, faults='none', order='drawn'): run an async test on a "
        "deterministic loop in virtual time, once for each seed",
    )


# -- collecting ----------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> None:
    """Put a plain function in the place of a marked coroutine function.

    No other plugin takes it for its own then; whatever it is collected as, it is run below.
    """
    if not isinstance(collector, (pytest.Module, pytest.Class)) or not inspect.isfunction(obj):
        return
    if hasattr(obj, SIMULATED) or not collector.istestfunction(obj, name):
        return
    marked = any(mark.name == MARK for mark in _marks(obj)) or collector.get_closest_marker(MARK)
    if not marked:
        return
    if not inspect.iscoroutinefunction(obj):
        raise pytest.UsageError(f"{collector.nodeid}::{name}: simulated is for async def tests")
    # On the function itself: this is what pytest looks at when it finds out what it needs.
    pytest.mark.usefixtures("simulated_loop")(obj)
    setattr(collector.obj, name, _stand_in(obj))


def _marks(function: Any) -> Iterable[pytest.Mark]:
    marks = getattr(function, "pytestmark", [])
    return marks if isinstance(marks, list) else [marks]


def _stand_in(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def begin(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    setattr(begin, SIMULATED, True)
    return begin


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a marked test once for each seed."""
    marker = metafunc.definition.get_closest_marker(MARK)
    if marker is not None and "simulated_seed" in metafunc.fixturenames:
        seeds = _seeds(marker, metafunc.definition.nodeid)
        metafunc.parametrize(
            "simulated_seed", seeds, ids=[f"seed{seed}" for seed in seeds], indirect=True
        )


def _seeds(marker: pytest.Mark, where: str) -> list[int]:
    wrong = sorted(set(marker.kwargs) - set(OPTIONS))
    if marker.args or wrong:
        given = ", ".join(wrong) or "values without a name"
        raise pytest.UsageError(
            f"{where}: simulated takes {', '.join(OPTIONS)} by name, not {given}"
        )
    seeds = marker.kwargs.get("seeds")
    if seeds is None:
        return [marker.kwargs.get("seed", 0)]
    if "seed" in marker.kwargs:
        raise pytest.UsageError(f"{where}: simulated takes seed or seeds, not both")
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


# -- running -------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test on its loop."""
    if not hasattr(pyfuncitem.obj, SIMULATED):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    fixtures: dict[str, Any] = pyfuncitem.funcargs
    given = {name: fixtures[name] for name in names if name in fixtures}
    _run(fixtures["simulated_loop"], pyfuncitem.obj(**given))
    return True


def _run(loop: SimulatedLoop, test: Any) -> None:
    """Run a test to its end; it fails for what went wrong beside it, too."""
    loop.set_exception_handler(lambda *_: None)
    loop.run(test)
    if loop.errors:
        told = "\n  ".join(
            f"{context.get('message')}: {context.get('exception')!r}" for context in loop.errors
        )
        raise AssertionError(f"errors that nobody awaits:\n  {told}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Tell of a failed test which seed it was, what was injected, and where its journal is."""
    report = yield
    if report.when == "call" and report.failed and isinstance(item, pytest.Function):
        told = _told(item)
        if told:
            report.sections.append(("radixtide", "\n".join(told)))
    return report


def _told(item: pytest.Function) -> list[str]:
    lines: list[str] = []
    fixtures: dict[str, Any] = item.funcargs
    if hasattr(item.obj, SIMULATED):
        lines.append(f"seed {fixtures['simulated_seed']}: again with pytest {item.nodeid!r}")
    caches: FaultyCaches | None = fixtures.get("faulty_cache")
    if caches is not None:
        injected = ", ".join(f"{kind} {n}" for kind, n in sorted(caches.injected.items()))
        lines.append(f"faults: {injected or 'none happened'}")
    journal: Journal | None = fixtures.get("journal")
    if journal is not None:
        lines.append(f"journal: {journal.path}")
        lines.append(f"look at it with: radixtide inspect {journal.path}")
    return lines


# -- fixtures ------------------------------------------------------------------------------------


@pytest.fixture
def simulated_seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of this run of the test; 0 without the marker."""
    seed: int = getattr(request, "param", 0)
    return seed


@pytest.fixture
def simulated_loop(request: pytest.FixtureRequest, simulated_seed: int) -> Iterator[SimulatedLoop]:
    """Return the loop that a marked test runs on."""
    from radixtide.simulation.loop import SimulatedLoop

    marker = request.node.get_closest_marker(MARK)
    if marker is None:
        raise pytest.UsageError("there is a simulated loop only with @pytest.mark.simulated")
    loop = SimulatedLoop(simulated_seed, order=marker.kwargs.get("order", "drawn"))
    yield loop
    if not loop.is_closed():
        loop.close()


class VirtualClock:
    """The time of a simulated loop: it passes when the loop has nothing else to do."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._began = loop.time()

    def time(self) -> float:
        """Return the loop's time in seconds."""
        return self._loop.time()

    @property
    def elapsed(self) -> float:
        """Virtual seconds since the test began."""
        return self._loop.time() - self._began

    @property
    def turns(self) -> int:
        """Callbacks that the loop has run: the same for the same seed."""
        return self._loop.turns


@pytest.fixture
def virtual_clock(simulated_loop: SimulatedLoop) -> VirtualClock:
    """Return the clock of a marked test."""
    return VirtualClock(simulated_loop)


class Journal:
    """A journal of all that happens to the caches of a test.

    ``path``: where it is. ``writer``: what writes it; it has the ``note_*`` methods.
    """

    def __init__(self, path: Path, writer: JournalWriter) -> None:
        self.path = path
        self.writer = writer


@pytest.fixture
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    """Return the journal of a test's caches; its path is shown when the test fails."""
    from radixtide.simulation.journal import JournalWriter
    from radixtide.simulation.journal_records import Header

    path = tmp_path / "journal.radixtide"
    seed: int = request.getfixturevalue("simulated_seed")
    writer = JournalWriter(path, _clock_of(request), Header(seed=seed))
    yield Journal(path, writer)
    writer.close()


def _clock_of(request: pytest.FixtureRequest) -> Callable[[], float]:
    """Return what tells the time of the loop that the test runs on."""
    if request.node.get_closest_marker(MARK) is not None:
        loop: SimulatedLoop = request.getfixturevalue("simulated_loop")
        return loop.time

    def running() -> float:
        import asyncio

        return asyncio.get_running_loop().time()

    return running


@pytest.fixture
def faulty_cache(request: pytest.FixtureRequest) -> FaultyCaches:
    """Return what opens a cache of a config under the faults of the marker."""
    from radixtide.testing.caches import FaultyCaches

    marker = request.node.get_closest_marker(MARK)
    plan = "none" if marker is None else marker.kwargs.get("faults", "none")
    writer = None
    if "journal" in request.fixturenames:
        writer = request.getfixturevalue("journal").writer
    return FaultyCaches(plan, request.getfixturevalue("simulated_seed"), writer)


@pytest.fixture
def oracle() -> Callable[[UnifiedRadixCache], Oracle]:
    """Return what makes an oracle for an open cache: ``oracle(cache)``."""
    from radixtide.testing.oracles import oracle_for

    return oracle_for
