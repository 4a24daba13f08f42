"""Setups, scripts and cases of simulated runs: drawn from seeds, kept as data."""

from __future__ import annotations

from collections import Counter

import pytest

from radixtide.configs.errors import ConfigError
from radixtide.simulation.case import Case, draw_case
from radixtide.simulation.plan import FaultPlan
from radixtide.simulation.setup import PAGES, SETS, TIERS, Setup, draw_setup

SEEDS = range(300)


def test_every_drawn_setup_is_a_config_and_all_kinds_of_it_are_drawn() -> None:
    drawn = [draw_setup(seed) for seed in SEEDS]
    for setup in drawn:
        assert setup.config().page_size == setup.page_size
    assert {setup.components for setup in drawn} == set(SETS)
    assert {setup.tiers for setup in drawn} == set(TIERS)
    assert {setup.page_size for setup in drawn} == set(PAGES)
    assert {setup.schedulers for setup in drawn} == {1, 2, 3, 4}
    assert {setup.ranks for setup in drawn} == {1, 2}
    assert {setup.bigram for setup in drawn} == {False, True}


def test_what_is_given_is_kept_and_the_rest_of_the_seed_stays_the_same() -> None:
    for seed in range(30):
        given = draw_setup(seed, ["mamba", "full"], "host")
        assert given.components == ("full", "mamba")
        assert given.tiers == "host"
        assert given.page_size == draw_setup(seed).page_size
        assert given.pages == draw_setup(seed, None, "device").pages


@pytest.mark.parametrize("names", [["swa"], ["full", "full"], ["full", "other"], []])
def test_a_set_of_components_that_there_is_not_is_refused(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="full,swa,mamba"):
        draw_setup(0, names)


def test_unknown_tiers_are_refused() -> None:
    with pytest.raises(ConfigError, match="device, host, storage"):
        draw_setup(0, None, "disk")  # type: ignore[arg-type]  # what a caller may get wrong


def test_a_case_is_the_same_after_it_was_json() -> None:
    for seed in range(20):
        case = draw_case(seed, 60, FaultPlan.heavy())
        raw = case.to_json()
        assert Case.from_json(raw) == case
        assert Case.from_json(raw).to_json() == raw


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"setup": {"pages": "many"}}', b"[1]"])
def test_what_is_no_case_is_refused(raw: bytes) -> None:
    with pytest.raises(ConfigError, match="no case"):
        Case.from_json(raw)


def test_the_steps_of_all_scripts_are_those_asked_for_and_the_same_each_time() -> None:
    for seed in range(20):
        case = draw_case(seed, 101, FaultPlan.none())
        assert case.steps == 101
        assert len(case.scripts) == case.setup.schedulers
        assert case == draw_case(seed, 101, FaultPlan.none())


def test_the_setup_of_a_seed_is_the_same_however_many_steps_are_taken() -> None:
    for seed in range(20):
        short, long = (draw_case(seed, steps, FaultPlan.none()) for steps in (10, 200))
        assert short.setup == long.setup
        assert max(map(len, long.scripts)) - min(map(len, long.scripts)) <= 1


def test_every_kind_of_step_is_drawn() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        for script in draw_case(seed, 400, FaultPlan.none()).scripts:
            seen.update(step.name for step in script)
    wanted = {
        "match", "insert", "allocate", "free", "evict", "lock", "unlock", "drop_window", "hold",
        "indices", "paired", "pin", "unpin", "start", "extend", "chunk", "finish", "abort",
        "retract", "release_window", "load_back", "close_load", "prefetch", "close_fetch", "drain",
        "flush", "sink", "detach", "attach", "reset", "stats", "agree", "pause", "restart",
        "hostile",
    }  # fmt: skip
    assert set(seen) == wanted


def test_a_setup_of_nothing_but_defaults_is_small_and_valid() -> None:
    assert Setup().config().pools.full.size == 32 * 4
