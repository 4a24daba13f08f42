"""Planted bugs: the simulator finds each (docs/mutations.md), and finds nothing without them."""

from __future__ import annotations

import re
from types import CodeType
from typing import Final

import pytest

from radixtide.components.full import FullComponent
from radixtide.tree import key
from support.planted import BUGS, Planted, broken_code, function_of, planted
from support.planted.finding import STEPS, find
from support.rooms import ROOT

FEWEST: Final = 25
"""Bugs that there are at least."""
QUICK_SEEDS: Final = 30
ALL_SEEDS: Final = 500

QUICK: Final = (
    "a_receipt_outlives_its_release",
    "a_split_keeps_the_names_of_its_beginning",
    "tombstones_keep_their_pairs",
    "a_window_is_given_back_a_page_early",
    "the_other_state_of_the_ring",
    "what_comes_twice_acts_twice",
    "a_repair_frees_what_callers_hold",
    "an_allocation_counts_its_rest",
    "a_failed_load_is_kept",
    "a_child_is_named_after_the_first_page_above",
    "a_fetch_that_brought_nothing_keeps_its_lock",
    "an_adapter_is_as_good_as_a_salt",
)
"""Bugs that a few seeds find, of several kinds: those that every run of the suite looks for."""


def by_name(name: str) -> Planted:
    return next(bug for bug in BUGS if bug.name == name)


def test_there_are_enough_bugs_of_many_kinds() -> None:
    names = [bug.name for bug in BUGS]
    assert len(names) == len(set(names)) >= FEWEST
    kinds = {bug.kind for bug in BUGS}
    assert kinds <= {f"K{number}" for number in range(1, 16)}
    assert len(kinds) > 9


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_changes_one_function_and_is_taken_out_again(bug: Planted) -> None:
    function = function_of(bug)
    sound = function.__code__
    broken = words(broken_code(bug))
    assert broken != words(sound)
    with planted(bug):
        assert words(function.__code__) == broken
    assert function.__code__ is sound
    with pytest.raises(ZeroDivisionError), planted(bug):
        raise ZeroDivisionError
    assert function.__code__ is sound


def words(code: CodeType) -> list[object]:
    """Return what a code does: its instructions, names and constants, and those of its parts."""
    parts = [words(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return [code.co_code, code.co_names, code.co_varnames, parts]


def test_a_bug_that_the_product_has_left_behind_is_no_bug() -> None:
    gone = Planted("gone", "K1", "nothing", key.common_units, "return tomorrow", "return")
    with pytest.raises(AssertionError, match="is 0 times in common_units"):
        broken_code(gone)
    twice = Planted("twice", "K1", "nothing", FullComponent.make_allocator, "size", "page")
    with pytest.raises(AssertionError, match=r"times in FullComponent\.make_allocator"):
        broken_code(twice)


def test_a_bug_is_met_by_all_who_have_the_function() -> None:
    bug = by_name("an_adapter_is_as_good_as_a_salt")
    frame = key.namespace_bytes
    with planted(bug):
        assert frame("a", None) == frame(None, "a")
        assert key.RadixKey([1], extra_key="a").namespace == frame(None, "a")
    assert frame("a", None) != frame(None, "a")


def test_every_bug_is_in_the_docs_with_its_seeds() -> None:
    text = (ROOT / "docs" / "mutations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (K\d+) \| `(\w+)` \| (.+?) \| (\d+) \|$", text, re.MULTILINE)
    assert [row[:3] for row in rows] == [(bug.kind, bug.name, bug.says) for bug in BUGS]
    assert all(1 <= int(row[3]) <= ALL_SEEDS for row in rows)
    assert f"all {len(BUGS)} bugs" in text


@pytest.mark.parametrize("name", QUICK)
def test_a_few_seeds_find_it(name: str) -> None:
    found = find(by_name(name), range(QUICK_SEEDS))
    assert found is not None, f"{QUICK_SEEDS} seeds of {STEPS} steps do not find {name}"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_the_simulator_finds_it(bug: Planted) -> None:
    found = find(bug, range(ALL_SEEDS), STEPS)
    assert found is not None, f"{ALL_SEEDS} seeds of {STEPS} steps do not find {bug}"
