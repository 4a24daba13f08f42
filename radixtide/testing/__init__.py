"""For tests of what is built on Radixtide: faults, a virtual clock, journals, the oracle.

Installed with the package is a pytest plugin (``radixtide.testing.plugin``) with the marker
``simulated`` and the fixtures ``faulty_cache``, ``virtual_clock``, ``journal`` and ``oracle``;
docs/faults.md tells how to use them. The names here are loaded at first use: pytest starts without
PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from radixtide.actors.inspection import at_rest, audit_now, tree_now
    from radixtide.simulation.case import Case, draw_case
    from radixtide.simulation.engine import SimulatedEngine
    from radixtide.simulation.faulty_engine import FaultyEngine
    from radixtide.simulation.faulty_store import FaultyStore
    from radixtide.simulation.injector import CANCELLED, InjectedCrash, InjectedError, Injector
    from radixtide.simulation.journal import JournalWriter
    from radixtide.simulation.journal_reading import read_journal
    from radixtide.simulation.loop import Deadlock, SimulatedLoop
    from radixtide.simulation.oracle import Oracle
    from radixtide.simulation.plan import KINDS, Fault, FaultKind, FaultPlan
    from radixtide.simulation.plan_reading import find_plan, read_plan
    from radixtide.simulation.run import Outcome, run_case
    from radixtide.simulation.setup import Setup, draw_setup
    from radixtide.simulation.store import Disk, SimulatedStore
    from radixtide.testing.caches import FaultyCaches, Unclean, was_injected

__all__ = (
    "CANCELLED",
    "KINDS",
    "Case",
    "Deadlock",
    "Disk",
    "Fault",
    "FaultKind",
    "FaultPlan",
    "FaultyCaches",
    "FaultyEngine",
    "FaultyStore",
    "InjectedCrash",
    "InjectedError",
    "Injector",
    "JournalWriter",
    "Oracle",
    "Outcome",
    "Setup",
    "SimulatedEngine",
    "SimulatedLoop",
    "SimulatedStore",
    "Unclean",
    "at_rest",
    "audit_now",
    "draw_case",
    "draw_setup",
    "find_plan",
    "read_journal",
    "read_plan",
    "run_case",
    "tree_now",
    "was_injected",
)

_WHERE: Final = {
    "radixtide.actors.inspection": ("at_rest", "audit_now", "tree_now"),
    "radixtide.simulation.case": ("Case", "draw_case"),
    "radixtide.simulation.engine": ("SimulatedEngine",),
    "radixtide.simulation.faulty_engine": ("FaultyEngine",),
    "radixtide.simulation.faulty_store": ("FaultyStore",),
    "radixtide.simulation.injector": ("CANCELLED", "InjectedCrash", "InjectedError", "Injector"),
    "radixtide.simulation.journal": ("JournalWriter",),
    "radixtide.simulation.journal_reading": ("read_journal",),
    "radixtide.simulation.loop": ("Deadlock", "SimulatedLoop"),
    "radixtide.simulation.oracle": ("Oracle",),
    "radixtide.simulation.plan": ("KINDS", "Fault", "FaultKind", "FaultPlan"),
    "radixtide.simulation.plan_reading": ("find_plan", "read_plan"),
    "radixtide.simulation.run": ("Outcome", "run_case"),
    "radixtide.simulation.setup": ("Setup", "draw_setup"),
    "radixtide.simulation.store": ("Disk", "SimulatedStore"),
    "radixtide.testing.caches": ("FaultyCaches", "Unclean", "was_injected"),
}
"""Where a name is defined."""

if not TYPE_CHECKING:  # checkers see the imports above; with this they would accept any name

    def __getattr__(name: str) -> object:
        """Load the public name `name` at its first use."""
        from importlib import import_module

        for module, names in _WHERE.items():
            if name in names:
                value = getattr(import_module(module), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module 'radixtide.testing' has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return the public names, loaded or not."""
        return sorted({*globals(), *__all__})
