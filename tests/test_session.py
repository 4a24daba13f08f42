"""``radixtide session``: where tokens were found, what a cache saves, what is printed."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from radixtide.cli.main import app
from radixtide.cli.session_progress import SessionProgress
from radixtide.cli.session_record import BARS, Ask, Case, SessionResult, summaries
from radixtide.cli.session_run import SessionOptions, run_session
from radixtide.cli.session_script import name_of, question, system_prompt
from radixtide.cli.session_view import as_page, token_rows
from radixtide.serving.models import load_model
from support.rooms import ROOT
from support.serving_models import REAL, served

PAGE_SIZE = 16
SMALL = SessionOptions(model="random:llama", prompt_tokens=200, samples=2, answer_tokens=3)
ASK = Ask(
    case=Case.COLD,
    user="Ada",
    question="My name is Ada. Why?",
    answer="So.",
    finish_reason="stop",
    prompt_tokens=100,
    output_tokens=3,
    cached_device=0,
    cached_host=0,
    cached_storage=0,
    computed_tokens=100,
    miss_reason="never_stored",
    ttft_s=2.0,
    total_s=3.0,
    queue_s=0.0,
    fetch_s=None,
    load_s=None,
)


@cache
def small() -> SessionResult:
    """Return a session of a small random model; one for all tests."""
    told: list[str] = []
    result = run_session(SMALL, told.append)
    assert len(told) == SMALL.steps, told
    return result


def of(case: Case) -> list[Ask]:
    return [ask for ask in small().asks if ask.case is case]


def call(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(app, ["session", *map(str, arguments)])


def words(text: str) -> int:
    return len(text.split())


# -- where tokens were ------------------------------------------------------------------


@pytest.mark.parametrize("case", Case, ids=str)
def test_every_token_of_a_prompt_was_somewhere_or_was_computed(case: Case) -> None:
    assert len(of(case)) == (SMALL.samples + 1 if case is Case.TOGETHER else SMALL.samples)
    for ask in of(case):
        found = ask.cached_device + ask.cached_host + ask.cached_storage
        assert found + ask.computed_tokens == ask.prompt_tokens
        assert ask.output_tokens == SMALL.answer_tokens or ask.finish_reason == "stop"


@pytest.mark.parametrize("case", [Case.DEVICE, Case.HOST, Case.STORAGE], ids=str)
def test_the_shared_prompt_is_found_whole_on_the_one_tier_that_has_it(case: Case) -> None:
    shared = small().shared_tokens // PAGE_SIZE * PAGE_SIZE
    assert shared >= SMALL.prompt_tokens
    for ask in of(case):
        # A name may begin like another's, and so reach into the next page.
        assert shared <= getattr(ask, f"cached_{case}") <= shared + PAGE_SIZE
        assert ask.cached_device + ask.cached_host + ask.cached_storage <= shared + PAGE_SIZE
        assert ask.miss_reason == "never_stored"


def test_nothing_of_a_cold_prompt_is_found() -> None:
    for ask in of(Case.COLD):
        assert ask.computed_tokens == ask.prompt_tokens


def test_who_asks_again_finds_the_first_turn_on_the_device() -> None:
    for ask in of(Case.TOGETHER):
        assert ask.cached_device > small().shared_tokens
        assert ask.cached_device == ask.prompt_tokens - ask.computed_tokens


def test_a_fetch_and_a_load_take_time_only_where_there_is_one() -> None:
    assert all(ask.fetch_s is None and ask.load_s is None for ask in of(Case.DEVICE))
    assert all(ask.fetch_s is not None for ask in of(Case.STORAGE))
    assert all(0 < ask.ttft_s <= ask.total_s for ask in small().asks)


def test_nothing_is_held_at_the_end_and_the_audit_is_sound() -> None:
    assert small().held == {"slots": 0, "locks": 0, "requests": 0}
    assert small().problems == []


@pytest.mark.slow
@pytest.mark.timeout(400)  # some 30 s of one core; others may use it too
def test_on_the_real_model_warm_and_loaded_prompts_take_a_small_part_of_a_cold_one() -> None:
    model = served(REAL).model
    options = SessionOptions(model=REAL, prompt_tokens=1000, samples=1, answer_tokens=1)
    result = run_session(options, lambda _: None, model)
    assert result.problems == []
    assert result.shared_tokens >= 1000
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"the same {result.shared_tokens:,} tokens" in readme
    rows = {row.case: row for row in summaries(result.asks)}
    assert rows[Case.DEVICE].cached_device == rows[Case.HOST].cached_host
    for case, share in BARS.items():
        assert rows[case].of_cold <= share, (case, rows)


# -- the script -------------------------------------------------------------------------


def test_prompts_that_begin_with_different_rules_differ_from_the_first_word_and_are_as_long() -> (
    None
):
    prompts = [system_prompt(words, 700, first) for first in (0, 10, 20, 30)]
    assert len({text.split()[1] for text in prompts}) == len(prompts)
    assert all(700 <= words(text) < 740 for text in prompts)


def test_rules_come_again_where_a_prompt_is_longer_than_all_of_them() -> None:
    assert 5000 <= words(system_prompt(words, 5000)) < 5040


def test_no_two_users_ask_the_same() -> None:
    asked = {question("", user)[1]["content"] for user in range(61)}
    assert len(asked) == 61
    assert len({name_of(user) for user in range(61)}) == 61


# -- what is shown ----------------------------------------------------------------------


def test_a_summary_has_medians_and_shares_of_the_cold_time() -> None:
    asks = [
        msgspec.structs.replace(ASK, case=case, ttft_s=seconds, cached_device=cached)
        for case, seconds, cached in [
            (Case.COLD, 1.0, 0),
            (Case.COLD, 4.0, 0),
            (Case.COLD, 9.0, 0),
            (Case.DEVICE, 0.2, 96),
            (Case.DEVICE, 0.6, 80),
        ]
    ]
    cold, device = summaries(asks)
    assert (cold.ttft_s, cold.fastest_s, cold.slowest_s, cold.of_cold) == (4.0, 1.0, 9.0, 1.0)
    assert (device.samples, device.of_cold, device.cached_device) == (2, 0.1, 88)
    assert device.miss_reasons == {"never_stored": 2}


def test_what_is_held_found_by_the_audit_or_not_answered_is_a_problem() -> None:
    sound = small()
    bad = msgspec.structs.replace(
        sound,
        held={"slots": 3, "locks": 0, "requests": 0},
        violations=("full: slot 7 is nobody's",),
        asks=(*sound.asks, msgspec.structs.replace(ASK, finish_reason="error")),
    )
    assert bad.problems == [
        "audit: full: slot 7 is nobody's",
        "still held: 3 slots",
        "no answer for Ada: My name is Ada. Why?",
    ]
    assert "slot 7 is nobody&#x27;s" in as_page(bad)


def test_the_page_needs_nothing_from_elsewhere_and_has_every_case() -> None:
    page = as_page(small())
    assert all(row[0] in page for row in token_rows(summaries(small().asks))[1:])
    assert "<script" not in page
    assert "http" not in page


def test_with_json_one_object_is_printed_and_the_report_is_written(tmp_path: Path) -> None:
    report = tmp_path / "session.html"
    result = call(
        "--model", "random:llama", "--prompt-tokens", 100, "--samples", 1, "--answer-tokens", 2,
        "--json", "--report", report,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    assert set(data["cases"]) == {str(case) for case in Case}
    assert data["held"] == {"slots": 0, "locks": 0, "requests": 0}
    assert (data["audit"]["violations"], data["problems"]) == (0, [])
    assert data["cases"]["cold"]["of_cold"] == 1.0
    assert data["cases"]["host"]["cached_host"] >= 96
    assert len(data["asks"]) == 4 + 2
    assert "Time to first token" in report.read_text(encoding="utf-8")


def test_a_person_sees_the_tables_within_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = call("--model", "random:lfm2", "--prompt-tokens", 80, "--samples", 1)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for start in ("│ cold ", "│ on device ", "│ from host ", "│ from storage ", "│ second turn "):
        assert sum(line.startswith(start) for line in lines) == 2, start
    assert any("audit" in line and "sound" in line for line in lines)


def test_an_interrupt_ends_it_with_130_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def interrupt(_: SessionProgress, what: str) -> None:
        told.append(what)
        if "Ben asks" in what:
            assert list(tmp_path.glob("radixtide-session-*"))
            raise KeyboardInterrupt

    monkeypatch.setattr(SessionProgress, "step", interrupt)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = call("--model", "random:llama", "--prompt-tokens", 64, "--samples", 1)
    assert (result.exit_code, result.stdout) == (130, "")
    assert "Ben asks" in told[-1]
    assert list(tmp_path.glob("radixtide-session-*")) == []


def test_a_report_that_can_not_be_written_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    result = call("--model", "nowhere", "--report", tmp_path / "session.txt")
    assert result.exit_code == 1
    assert "session.txt" in str(result.exception)


def test_a_model_that_is_not_there_is_named() -> None:
    result = call("--model", "/nowhere/model")
    assert result.exit_code == 1
    assert "/nowhere/model" in str(result.exception)


@pytest.mark.parametrize("model", ["random:gemma3", "random:qwen3_next"])
def test_models_with_windows_and_states_find_their_prompts_on_every_tier(model: str) -> None:
    options = SessionOptions(model=model, prompt_tokens=150, samples=1, answer_tokens=2)
    result = run_session(options, lambda _: None, load_model(model))
    assert result.problems == []
    rows = {row.case: row for row in summaries(result.asks)}
    for case in (Case.DEVICE, Case.HOST, Case.STORAGE):
        # States are kept at some lengths only, so less than the shared part may be found.
        assert getattr(rows[case], f"cached_{case}") >= 64, rows[case]
