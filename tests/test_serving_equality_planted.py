"""Slips that are planted in runner, cache and scheduler: the comparison must find each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.serving_models import RANDOM, served
from support.serving_planted import CACHE, EARLY, RUNNER, SCHEDULER, Slip
from support.serving_scenes import leave, serve, walk

pytestmark = pytest.mark.slow


def cases(*groups: tuple[Slip, ...]) -> list[object]:
    return [
        pytest.param(
            slip,
            spec,
            id=f"{slip.name}-{spec}",
            marks=() if spec == slip.specs[0] else pytest.mark.nightly,
        )
        for group in groups
        for slip in group
        for spec in slip.specs
    ]


@pytest.mark.parametrize(("slip", "spec"), cases(RUNNER, CACHE))
async def test_a_slip_of_runner_or_cache_is_found(
    slip: Slip, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = served(spec)
    slip.plant(monkeypatch)
    wrong = await walk(subject)
    assert slip.is_told(wrong), wrong


@pytest.mark.parametrize("spec", RANDOM)
async def test_without_a_slip_nothing_is_found(spec: str) -> None:
    assert await walk(served(spec)) == []
    assert await serve(served(spec)) == []
    assert await leave(served(spec)) == []


@pytest.mark.parametrize(("slip", "spec"), cases(SCHEDULER))
async def test_a_slip_of_the_scheduler_is_found(
    slip: Slip, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = served(spec)
    slip.plant(monkeypatch)
    wrong = await serve(subject)
    assert slip.is_told(wrong), wrong


@pytest.mark.parametrize(("slip", "spec"), cases(EARLY))
async def test_a_slip_at_a_request_that_goes_is_found(
    slip: Slip, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = served(spec)
    slip.plant(monkeypatch)
    wrong = await leave(subject)
    assert slip.is_told(wrong), wrong


def test_the_page_lists_each_slip_that_is_planted() -> None:
    page = (Path(__file__).parent.parent / "docs" / "equality.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.count("|") == 3]
    told = {(row[1].strip(), row[2].strip()) for row in rows}
    groups = {"runner": RUNNER, "cache": CACHE, "scheduler": (*SCHEDULER, *EARLY)}
    planted = {(where, slip.name) for where, group in groups.items() for slip in group}
    assert {row for row in told if row[0] in groups} == planted
