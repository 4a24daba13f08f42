"""The page about ``radixtide simulate`` tells of every flag and key, and its test runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.main import get_command

from radixtide.cli.main import app
from radixtide.cli.simulate_replay import Replayed
from radixtide.cli.simulate_run import Failure, Report
from radixtide.cli.simulate_summary import as_json, replay_as_json
from radixtide.cli.simulate_tasks import Ran
from radixtide.cli.simulate_totals import Totals
from radixtide.components.mamba import MambaComponent
from radixtide.simulation.case import Case
from radixtide.simulation.plan import PLANS
from radixtide.simulation.run import Outcome, run_case
from support.rooms import ROOT

PAGE = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> set[str]:
    """Return what stands in code in the first column of the table headed by `heading`."""
    table = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return {
        name
        for row in re.findall(r"^\| (.*?) \|", table, flags=re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    }


def test_every_flag_is_told_and_no_other() -> None:
    command = get_command(app).commands["simulate"]  # type: ignore[attr-defined]  # a group has them
    flags = {
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--") and flag != "--help"
    }
    assert {flag.partition(" ")[0] for flag in first_cells("flag | default")} == flags


def test_every_key_is_told_and_no_other() -> None:
    ran = Ran(seed=1, found=1, violations=("lost: 1 slot",))
    report = Report(
        totals=Totals(), failures=[Failure(ran=ran, small=None, test="...")], wall_s=1.0
    )
    keys = {*as_json(report), *replay_as_json(Replayed(ran=ran, same=True, told=""))}
    assert {key.removesuffix("[]") for key in first_cells("key")} == keys
    for key in as_json(report)["failures"][0]:
        assert f"`{key}`" in PAGE


def test_every_plan_that_comes_along_is_told() -> None:
    for plan in PLANS.glob("*.toml"):
        assert f"`{plan.stem}`" in PAGE


def test_the_test_on_the_page_finds_the_bug_that_was_planted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (source,) = [
        text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def " in text
    ]
    names: dict[str, Any] = {}
    exec(compile(source, "simulate.md", "exec"), names)
    outcomes: list[Outcome] = []

    def run(case: Case) -> Outcome:
        outcomes.append(run_case(case))
        return outcomes[-1]

    names["run_case"] = run
    names["test_seed_1"]()
    monkeypatch.setattr(MambaComponent, "acquire_component_lock", lambda _component, _node: None)
    with pytest.raises(AssertionError):
        names["test_seed_1"]()
    sound, broken = outcomes
    assert sound.violations == []
    assert f'"""Seed 1: {broken.violations[0]}."""' in source
