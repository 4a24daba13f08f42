"""Fault plans are data: from TOML, from Python, and back; mistakes are named by their path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from radixtide.configs.errors import ConfigError
from radixtide.simulation.plan import KINDS, PLANS, Fault, FaultPlan
from radixtide.simulation.plan_reading import (
    check_names,
    find_plan,
    message_names,
    parse_plan,
    read_plan,
    render_plan,
)

PLAN = """
name = "mondays"

[[fault]]
kind = "drop"
message = ["Lock", "CommitMatch"]
where = "reply"
skip = 2
count = 3

[[fault]]
kind = "delay"
receiver = "swa"
sender = "coordinator"
probability = 0.25
seconds = 1
seconds_max = 2.5
"""
FAULTS = (
    Fault(kind="drop", message=("Lock", "CommitMatch"), where="reply", skip=2, count=3),
    Fault(
        kind="delay",
        receiver="swa",
        sender="coordinator",
        probability=0.25,
        seconds=1.0,
        seconds_max=2.5,
    ),
)

EVERY = FaultPlan(
    (
        *FAULTS,
        Fault(kind="stall", message="Lock", seconds=0.5),
        Fault(kind="copy_slow", direction="load", pool="full", seconds=0.0),
        Fault(kind="storage_torn", operation="put", probability=1e-7),
        Fault(kind="host_refuse", pool="mamba"),
        Fault(kind="rank_skew", rank=1, seconds=3.0),
    ),
    'a "plan"',
)


def problems(text: str) -> list[str]:
    """Return what a plan is refused with, one line a problem."""
    with pytest.raises(ConfigError) as caught:
        parse_plan(text, "p.toml")
    lines = str(caught.value).splitlines()
    if len(lines) == 1:
        return [lines[0].removeprefix("p.toml: ")]
    return [line.strip() for line in lines[1:]]


def one_fault(**keys: Any) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(("[[fault]]", *lines))


def test_a_plan_is_read() -> None:
    assert parse_plan(PLAN) == FaultPlan(FAULTS, "mondays")


def test_a_plan_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "tuesdays.toml"
    path.write_text('[[fault]]\nkind = "kill"\n', encoding="utf-8")
    assert read_plan(path) == FaultPlan((Fault(kind="kill"),), "tuesdays")
    assert find_plan(str(path)) == find_plan(path) == read_plan(path)


def test_an_empty_file_is_a_plan_of_no_faults() -> None:
    assert parse_plan("").faults == ()


@pytest.mark.parametrize("plan", [EVERY, FaultPlan.light(), FaultPlan.heavy(), FaultPlan.none()])
def test_a_plan_is_the_same_after_toml_and_after_json(plan: FaultPlan) -> None:
    assert parse_plan(render_plan(plan)) == plan
    assert msgspec.json.decode(msgspec.json.encode(plan), type=FaultPlan) == plan


def test_a_fault_says_what_it_is_in_few_words() -> None:
    assert str(Fault(kind="kill")) == "kill"
    assert str(FAULTS[1]) == (
        "delay sender='coordinator' receiver='swa' probability=0.25 seconds=1.0 seconds_max=2.5"
    )


def test_the_presets_have_every_kind_of_fault() -> None:
    assert FaultPlan.heavy().kinds == KINDS
    assert FaultPlan.light().kinds == KINDS
    assert FaultPlan.none().kinds == ()
    assert [FaultPlan.light().name, FaultPlan.heavy().name, FaultPlan.none().name] == [
        "light",
        "heavy",
        "none",
    ]


def test_a_plan_is_found_by_name_and_a_plan_is_itself() -> None:
    assert find_plan("light") == FaultPlan.light() == read_plan(PLANS / "light.toml")
    assert find_plan("heavy") == FaultPlan.heavy() == read_plan(PLANS / "heavy.toml")
    assert find_plan("none") == FaultPlan.none()
    assert find_plan(EVERY) is EVERY


def test_a_name_that_is_none_is_asked_about() -> None:
    with pytest.raises(ConfigError, match=r"hevy: no such file, .* did you mean heavy\?"):
        find_plan("hevy")
    with pytest.raises(ConfigError, match="those are light, heavy, none"):
        find_plan("qqqqqqqq")


def test_files_that_can_not_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: can not be read: No such file"):
        read_plan(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="can not be read"):
        read_plan(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"\n')
    with pytest.raises(ConfigError, match=r"is not UTF-8 \(byte 8\)"):
        read_plan(tmp_path / "latin.toml")


def test_what_is_not_toml_is_named_by_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^p\.toml:3: not valid TOML"):
        parse_plan('name = "x"\n[[fault]]\nkind = drop\n', "p.toml")
    with pytest.raises(ConfigError, match=r"^p\.toml:2: not valid TOML"):
        parse_plan('name = "x"\n[[fault', "p.toml")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("nme = 1", ["nme: unknown key; did you mean name?"]),
        ("qqqq = 1", ["qqqq: unknown key; known here: name, fault"]),
        ("name = 3", ["name: found 3, but needs a string that is not empty"]),
        ("[fault]", ["fault: found a table, but this is an array of tables: write [[fault]]"]),
        ("fault = [1]", ["fault[0]: found 1, but this is a table: write [[fault]]"]),
        (
            one_fault(kind="drop", secnds=1),
            ["fault[0].secnds: unknown key; did you mean seconds?"],
        ),
        (
            one_fault(kind="drop", count=True, skip="2"),
            [
                "fault[0].count: found true, but needs an integer",
                'fault[0].skip: found "2", but needs an integer',
            ],
        ),
        (
            one_fault(kind="drop", message=["Lock", 3]),
            [
                (
                    "fault[0].message: found an array, but needs a string or an array, each item a "
                    "string"
                )
            ],
        ),
        (
            one_fault(kind="drop", where="replys"),
            [
                (
                    'fault[0].where: found "replys", but needs one of "both", "reply", "request"; '
                    "did you mean reply?"
                )
            ],
        ),
        (
            one_fault(kind="drop", message="Lok"),
            ["fault[0].message: no message is called 'Lok'; did you mean Lock?"],
        ),
        (
            one_fault(kind="drop", message=["Lock", "Qqqqqqq"]),
            ["fault[0].message: no message is called 'Qqqqqqq'; docs/messages.md lists them"],
        ),
        (
            one_fault(kind="kill", message=[]),
            ["fault[0].message: names no message; leave it out to choose all"],
        ),
        (
            one_fault(kind="drop", seconds=1.0),
            ["fault[0].seconds: means nothing to drop; leave it out"],
        ),
        (
            one_fault(kind="copy_fail", message="Lock", operation="get"),
            [
                "fault[0].message: means nothing to copy_fail; leave it out",
                "fault[0].operation: means nothing to copy_fail; leave it out",
            ],
        ),
        (
            one_fault(kind="stall"),
            ["fault[0].seconds: missing; stall needs a number of at least 0"],
        ),
        (
            one_fault(kind="delay", seconds=-1),
            ["fault[0].seconds: found -1, but needs a number from 0 to 3600"],
        ),
        (
            one_fault(kind="delay", seconds=2, seconds_max=1),
            ["fault[0].seconds_max: found 1, but needs a number from 2 to 3600"],
        ),
        (
            one_fault(kind="reorder", seconds_max=1),
            ["fault[0].seconds: missing beside seconds_max; it is the least that is drawn"],
        ),
        (
            one_fault(kind="drop", probability=0),
            ["fault[0].probability: found 0, but needs a number above 0, at most 1"],
        ),
        (
            one_fault(kind="drop", probability=1.5),
            ["fault[0].probability: found 1.5, but needs a number above 0, at most 1"],
        ),
        (
            one_fault(kind="drop", count=0, skip=-1),
            [
                "fault[0].skip: found -1, but needs an integer of at least 0",
                "fault[0].count: found 0, but needs an integer of at least 1",
            ],
        ),
        (
            one_fault(kind="storage_corrupt", operation="exists"),
            [
                (
                    "fault[0].operation: found 'exists', but storage_corrupt needs get or put, or "
                    "none for both"
                )
            ],
        ),
        (
            one_fault(kind="rank_skew", rank=-1, seconds=1),
            ["fault[0].rank: found -1, but needs an integer of at least 0"],
        ),
    ],
)
def test_a_mistake_is_named_by_its_path_with_what_would_be_right(
    text: str, wrong: list[str]
) -> None:
    assert problems(text) == wrong


def test_a_kind_that_is_none_is_asked_about() -> None:
    (line,) = problems(one_fault(kind="dealy", seconds=1))
    assert line.startswith('fault[0].kind: found "dealy", but needs one of "cancel_caller"')
    assert line.endswith("did you mean delay?")
    (line,) = problems("[[fault]]")
    assert line.startswith("fault[0].kind: missing; needs one of")


def test_all_mistakes_are_named_at_once() -> None:
    text = "\n".join((one_fault(kind="drop", seconds=1), one_fault(kind="kill", count=0), "[x]"))
    assert problems(text) == [
        "x: unknown key; known here: name, fault",
        "fault[0].seconds: means nothing to drop; leave it out",
        "fault[1].count: found 0, but needs an integer of at least 1",
    ]


@pytest.mark.parametrize("text", ["inf", "nan", "-inf", "1e+09"])
def test_numbers_that_no_timer_takes_are_refused(text: str) -> None:
    (line,) = problems(f'[[fault]]\nkind = "delay"\nseconds = {text}')
    assert line == f"fault[0].seconds: found {text}, but needs a number from 0 to 3600"


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"kind": "drop", "seconds": 1.0}, "fault drop: seconds: means nothing to drop"),
        ({"kind": "delay"}, "fault delay: seconds: missing"),
        ({"kind": "drop", "probability": 2.0}, "probability: found 2.0"),
        ({"kind": "nothing"}, "kind: found 'nothing', but needs one of drop, delay"),
    ],
)
def test_a_fault_made_in_python_is_checked_too(keys: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        Fault(**keys)


def test_names_that_no_cache_has_are_named_with_what_would_be_right() -> None:
    faults = (
        Fault(kind="drop", message=("Lock", "Lok")),
        Fault(kind="kill", receiver="nobody"),
        Fault(kind="drop", sender="fase"),
        Fault(kind="kill", receiver="face"),
    )
    with pytest.raises(ConfigError) as caught:
        check_names(FaultPlan(faults, "mine"))
    those = "those are coordinator, tiering, full, swa, mamba"
    assert [line.strip() for line in str(caught.value).splitlines()] == [
        "plan 'mine': 4 problems",
        "fault 1 (drop): message: no message is called 'Lok'; did you mean Lock?",
        f"fault 2 (kill): receiver: no actor is called 'nobody'; {those}",
        "fault 3 (drop): sender: no actor is called 'fase'; did you mean face?",
        f"fault 4 (kill): receiver: no actor is called 'face'; {those}",
    ]


def test_names_that_there_may_be_are_good() -> None:
    for plan in (FaultPlan.light(), FaultPlan.heavy(), EVERY):
        check_names(plan)
    of_its_own = FaultPlan((Fault(kind="kill", receiver="sidecar"),))
    check_names(of_its_own, ["full", "sidecar"])
    with pytest.raises(ConfigError, match="'sidecar'"):
        check_names(of_its_own, ["full"])


def test_what_lasts_longer_than_a_run_waits_is_hopeless_for_it() -> None:
    assert FaultPlan.heavy().hopeless == ()
    for fault in (
        Fault(kind="stall", seconds=60.0),
        Fault(kind="storage_slow", seconds=0.0, seconds_max=60.0),
    ):
        (line,) = FaultPlan((fault,)).hopeless
        assert line == (
            f"fault 1 ({fault.kind}): lasts up to 60 s, longer than a run waits for anything; "
            "write at most 10"
        )


def test_messages_are_known_by_the_names_of_their_types() -> None:
    names = message_names()
    assert list(names) == sorted(names)
    assert {"MatchPrefixParams", "Lock", "StartCopy", "CopyDone", "Free", "Ping"} <= set(names)
    assert not {"Plan", "Apply", "Opening", "Told", "Call", "Report"} & set(names)
