"""Runs the benchmark programs in the test's own process."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import typer
from typer.testing import CliRunner, Result

from support.rooms import ROOT


def load_benchmarks() -> None:
    """Make ``benchmarks`` importable without putting the root of the checkout on the path."""
    if "benchmarks" in sys.modules:
        return
    folder = ROOT / "benchmarks"
    spec = importlib.util.spec_from_file_location(
        "benchmarks", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmarks"] = module
    spec.loader.exec_module(module)


def run_benchmark(name: str, *arguments: str) -> Result:
    """Run ``python -m benchmarks.NAME`` and return its exit status and output."""
    load_benchmarks()
    command = typer.Typer()
    command.command()(importlib.import_module(f"benchmarks.{name}").main)
    return CliRunner().invoke(command, arguments)
