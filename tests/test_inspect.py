"""``radixtide inspect``: a journal as numbers, lines, pictures, and as the tree at a step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from typer.testing import CliRunner

from radixtide import Request, UnifiedRadixCache
from radixtide.cli.inspect_diagram import make_diagram
from radixtide.cli.inspect_events import Event, Filter, events
from radixtide.cli.inspect_words import as_runs, words_of
from radixtide.cli.main import app
from radixtide.simulation.codec import as_plain
from radixtide.simulation.journal import JournalWriter
from radixtide.simulation.journal_reading import read_journal
from radixtide.simulation.journal_records import Fault, Handled, Sent
from support.caches import key, match, store
from support.inspecting import run
from support.interceptors import CrashBefore
from support.journals import few_calls, journalled, records


async def busy_scene(cache: UnifiedRadixCache, journal: JournalWriter) -> None:
    """Two keys, two requests, an injected fault, a crash, a refused call, a copy, an audit."""
    await few_calls(cache, journal)
    journal.note_step_began(4, 1, "start")
    await store(cache, key([7] * 4))
    requests = [Request("r1", list(range(8))), Request("r22", [7] * 4)]
    for req in requests:
        await match(cache, req.key(), req=req, lock=True)
    journal.note_fault("copy_fail", "backup of page 3")
    journal.note_copy(5, "backup", "done", "no such page")
    journal.note_store("put", "over", 2)
    journal.note_step_ended(4, 1)
    journal.note_step_began(5, 0, "abort")
    for req in requests:
        await cache.abort_req(req)
    journal.note_audit((await cache.audit()).violations)
    journal.note_step_ended(5, 0)


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journals") / "run.journal"
    path.write_bytes(journalled(busy_scene, faults=[CrashBefore("CommitMatch", "full")]))
    return path


def lines(*words: str | Path) -> list[dict[str, Any]]:
    """Return the events that are shown, as data."""
    shown = run(*words, "--timeline", "--json", "--limit", "0")
    return [json.loads(line) for line in shown.stdout.splitlines()]


# -- counts -----------------------------------------------------------------------------


def test_counts_say_what_happened_how_often(path: Path) -> None:
    counts = json.loads(run(path, "--json").stdout)
    whole = records(path)
    assert counts["seed"] == 5
    assert counts["made_by"] == "a test"
    assert counts["torn"] is None
    assert counts["records"] == len(whole) - 1
    assert counts["steps"] == 5
    assert counts["audits"] == 1
    assert counts["faults"] == {"copy_fail": 1}
    assert counts["crashes"] == {"full": 1}
    assert counts["others"] == {"copy": 1, "store": 1}
    commits = counts["messages"]["CommitMatch"]
    assert (commits["sent"], commits["handled"], commits["again"]) == (3, 3, 1)
    assert sum(one["sent"] for one in counts["messages"].values()) == sum(
        isinstance(record, Sent) for record in whole
    )
    assert sum(counts["handled_by"].values()) == sum(
        isinstance(record, Handled) for record in whole
    )


def test_counts_are_shown_to_people_too(path: Path) -> None:
    shown = run(path).stdout
    assert "a test, seed 5: 5 steps" in shown
    for word in ("CommitMatch", "coordinator", "copy_fail", "Crashes"):
        assert word in shown


def test_counts_can_be_of_a_part(path: Path) -> None:
    part = json.loads(run(path, "--json", "--from", "2", "--to", "2").stdout)
    assert part["steps"] == 1
    assert list(part["messages"]) == ["MatchPrefixParams", "Validate", "CommitMatch"]


def test_violations_are_counted_and_shown(tmp_path: Path) -> None:
    async def scene(cache: UnifiedRadixCache, journal: JournalWriter) -> None:
        journal.note_audit(["sizes: 7 slots are nobody's"])

    path = tmp_path / "bad.journal"
    path.write_bytes(journalled(scene))
    assert "violation: sizes: 7 slots are nobody's" in run(path).stdout
    assert json.loads(run(path, "--json").stdout)["violations"] == ["sizes: 7 slots are nobody's"]


# -- choosing ---------------------------------------------------------------------------


def test_the_whole_timeline_has_every_record_but_the_header(path: Path) -> None:
    shown = lines(path)
    assert [one["index"] for one in shown] == list(range(1, len(records(path))))
    assert {one["record"] for one in shown} >= {"sent", "step", "done", "fault", "crash", "audit"}


def test_steps_choose_all_that_happens_in_them(path: Path) -> None:
    shown = lines(path, "--from", "2", "--to", "3")
    assert {one["in_step"] for one in shown} == {2, 3}
    assert shown[0]["record"] == "step"
    whole = lines(path)
    assert shown == [one for one in whole if one["in_step"] in (2, 3)]


def test_an_actor_chooses_what_it_sends_and_gets(path: Path) -> None:
    shown = lines(path, "--actor", "full")
    assert {"CommitMatch", "Reserve"} <= {one.get("kind") for one in shown}
    assert all(
        "full" in (one.get("sender"), one.get("receiver"), one.get("actor")) for one in shown
    )
    assert any(one["record"] == "crash" for one in shown)


@pytest.mark.parametrize(
    ("kind", "record", "word"),
    [
        ("CommitMatch", "sent", "CommitMatch"),
        ("commitmatch", "sent", "CommitMatch"),
        ("copy_fail", "fault", "copy_fail"),
        ("crash", "crash", None),
        ("abort", "step", None),
    ],
)
def test_a_kind_chooses_messages_faults_and_records(
    path: Path, kind: str, record: str, word: str | None
) -> None:
    shown = lines(path, "--kind", kind)
    assert shown[0]["record"] == record
    assert {one.get("kind") for one in shown} == {word}


def test_a_request_chooses_its_calls_and_what_they_cause(path: Path) -> None:
    mine, others = lines(path, "--request", "r1"), lines(path, "--request", "r22")
    for shown in (mine, others):
        assert [one["kind"] for one in shown if one["record"] == "sent"] == [
            "MatchPrefixParams",
            "Validate",
            "CommitMatch",
            "AbortReq",
            "LetGo",
        ]
        assert shown[-1]["record"] == "answered"
    assert not {one["number"] for one in mine} & {one["number"] for one in others}
    # What is caused counts also where the actor that is asked for is another.
    assert {one["kind"] for one in lines(path, "--request", "r1", "--actor", "full")} == {
        "Validate",
        "CommitMatch",
        "LetGo",
    }
    run(path, "--request", "r", exit_code=2)


def test_a_node_chooses_the_messages_that_name_it(path: Path) -> None:
    shown = lines(path, "--node", "1")
    sent = [one for one in shown if one["record"] == "sent"]
    assert {"CommitMatch", "Validate"} <= {one["kind"] for one in sent}
    for one in sent:
        # By itself, or the answer names it.
        about = [other for other in lines(path) if other.get("number") == one["number"]]
        assert re.search(r'"node": 1\b', json.dumps(about))
    # A number that is no node's, though it is a step, a length and a slot.
    run(path, "--node", "8", exit_code=2)


def test_filters_are_all_to_be_met(path: Path) -> None:
    both = lines(path, "--node", "1", "--kind", "Validate", "--from", "2", "--to", "2")
    assert [one["record"] for one in both] == ["sent", "delivered", "handled", "answered"]


def test_causes_are_followed_from_sender_to_sender(path: Path) -> None:
    found = list(events(records(path)))
    call = next(
        one for one in found if isinstance(one.record, Sent) and one.record.kind == "DecLockRef"
    )
    caused = [one for one in found if one.cause is not None and one.cause == call.exchange]
    assert [one.record.kind for one in caused if isinstance(one.record, Sent)] == ["Unlock"]
    assert all(one.cause is None for one in found if getattr(one.record, "sender", "") == "face")


# -- timeline ---------------------------------------------------------------------------


def test_a_timeline_has_a_line_for_each_thing(path: Path) -> None:
    shown = run(path, "--timeline", "--limit", "0").stdout.splitlines()
    assert len(shown) == len(records(path)) - 1
    unlock = next(line for line in shown if "DecLockRef" in line)
    assert re.search(
        r"3 sent +face > coordinator +DecLockRef #\d+ +receipt=receipt\(1 of n1\)", unlock
    )
    assert any("crash" in line and "full crashed" in line for line in shown)


def test_a_limit_is_told(path: Path) -> None:
    shown = run(path, "--timeline", "--limit", "3")
    assert len(shown.stdout.splitlines()) == 3
    assert "only the first 3" in shown.stderr
    assert run(path, "--timeline", "--limit", "0").stderr == ""


def test_json_has_numbers_for_arrays_and_hex_for_bytes(path: Path) -> None:
    sent = next(one for one in lines(path) if one.get("kind") == "InsertParams")
    assert sent["message"]["value"] == list(range(8))
    assert sent["message"]["key"]["tokens"] == list(range(8))


# -- diagram ----------------------------------------------------------------------------


def test_a_diagram_has_a_lifeline_an_actor_and_an_arrow_a_message(path: Path) -> None:
    shown = run(path, "--diagram", "--limit", "0").stdout.splitlines()
    heads = shown[0].split()
    assert heads[:2] == ["face", "coordinator"]
    assert "full" in heads
    asked = next(line for line in shown if "DecLockRef" in line)
    assert re.search(r"│─+DecLockRef #\d+─+▶│", asked)
    answered = next(line for line in shown if re.search(r"answer #\d+", line))
    assert "◀╌" in answered
    assert any("x crash" in line for line in shown)
    assert any("── step 3: unlock ──" in line for line in shown)
    # An arrow leads from the column of one name to that of another.
    columns = {name: shown[0].index(name) + len(name) // 2 for name in ("face", "coordinator")}
    assert abs(asked.index("│─") - columns["face"]) <= 1
    assert abs(asked.index("▶│") + 1 - columns["coordinator"]) <= 1


def test_a_narrow_terminal_cuts_names_and_not_arrows(path: Path) -> None:
    from radixtide.cli.inspect_diagram import draw

    diagram = make_diagram(events(records(path)))
    for line in draw(diagram, 60):
        assert len(line.plain) <= 17 + 12 * len(diagram.actors)


def test_lifelines_stand_in_a_fixed_order() -> None:
    def sent(sender: str, receiver: str, source: int = 0) -> Event:
        return Event(0, 0.0, None, Sent(0.0, 1, sender, receiver, "K", source=source))

    diagram = make_diagram(
        [
            sent("coordinator", "tiering"),
            sent("coordinator", "swa"),
            sent("coordinator", "full"),
            sent("face", "coordinator", 1),
            sent("face", "coordinator"),
        ]
    )
    names = ["face", "coordinator", "swa", "full", "tiering", "face/1", "coordinator/1"]
    assert diagram.actors == names


def test_a_fault_is_shown_where_it_hit() -> None:
    about = {"sender": "face", "receiver": "coordinator", "message": "Lock"}
    raw = msgspec.Raw(msgspec.msgpack.encode(about))
    diagram = make_diagram([Event(0, 0.0, 3, Fault(0.0, "drop", 12, raw))])
    (row,) = diagram.rows
    assert (row.receiver, row.text, row.bad) == ("coordinator", "drop #12", True)


def test_a_page_is_complete_and_well_formed(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    shown = run(path, "--html", page, "--limit", "0")
    assert str(page) in shown.stderr
    assert shown.stdout == ""
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "http" not in text.replace('xmlns="http', "")
    found = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert found is not None
    picture = ET.fromstring(found.group())
    words = [node.text or "" for node in picture.iter("text")]
    for word in ("face", "full", "crash", "step 3: unlock  scheduler 0"):
        assert word in words
    rows = make_diagram(events(records(path))).rows
    assert len(list(picture.iter("g"))) == len(rows)


@pytest.mark.parametrize("name", ["run.txt", "absent/run.html"])
def test_a_page_that_can_not_be_written_is_refused(path: Path, tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(app, ["inspect", str(path), "--html", str(tmp_path / name)])
    assert "--html" in str(result.exception)


# -- words ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0, 1, 2, 3, 9], "[0-3 9]"),
        ([0, 8], "[0 8]"),
        ({"node": 4, "end": 12}, "n4@12"),
        (
            {"receipt": 2, "of": {"node": 4, "generation": 0, "epoch": 1}, "cache": 0},
            "receipt(2 of n4)",
        ),
        ({"object": "LayerGate"}, "<LayerGate>"),
        ({"type": "Lock", "node": {"node": 4, "end": 12}}, "Lock(node=n4@12)"),
        ({"type": "GetSizes"}, "GetSizes()"),
        ({"error": "StaleNode", "text": "gone"}, "StaleNode(gone)"),
        (b"\x01" * 32, "010101010101(32 bytes)"),
        (True, "True"),
        (0.5, "0.5"),
    ],
)
def test_data_is_said_in_few_words(value: Any, words: str) -> None:
    assert words_of(value) == words


def test_keys_and_requests_are_said_in_few_words() -> None:
    wanted = key(6, extra_key="adapter")
    assert words_of(as_plain(wanted)) == "key(6: 0-5 extra_key=adapter)"
    assert words_of(as_plain(Request("r1", [1, 2], [3]))) == "req(r1, 2+1)"


def test_long_lists_are_cut() -> None:
    assert as_runs(list(range(0, 40, 2))) == "0 2 4 6 8 10 ..."


# -- files ------------------------------------------------------------------------------


def test_a_torn_journal_is_shown_and_told(path: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.journal"
    torn.write_bytes(path.read_bytes()[:-5])
    shown = run(torn, "--timeline", "--limit", "0")
    assert len(shown.stdout.splitlines()) == len(records(path)) - 2
    assert "the writer was stopped there" in shown.stderr
    assert "stopped there" in json.loads(run(torn, "--json").stdout)["torn"]
    assert "stopped there" in " ".join(run(torn).stdout.split())


def test_wrong_uses_are_told_apart_from_wrong_files(path: Path, tmp_path: Path) -> None:
    for words in (
        ["--tree"],
        ["--step", "3"],
        ["--timeline", "--diagram"],
        ["--from", "5", "--to", "3"],
    ):
        run(path, *words, exit_code=2)
    other = tmp_path / "other.journal"
    other.write_bytes(b"something else")
    done = subprocess.run(
        [sys.executable, "-m", "radixtide.cli.main", "inspect", str(other)],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 1
    assert "is no journal" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--actor", "coordinatr"], "no 'coordinatr'; did you mean coordinator?"),
        (["--actor", "nobody"], "it has face, coordinator, full"),
        (["--kind", "Nope"], "no 'Nope'"),
        (["--kind", "Comit"], "did you mean"),
        (["--request", "r3"], "it has r1, r22"),
        (["--node", "999999"], "no '999999'; it has 0, 1, 2"),
        (["--from", "9000"], "no step 9000; its steps are 1 to 5"),
    ],
)
@pytest.mark.parametrize("view", [[], ["--timeline"], ["--diagram"], ["--json"]], ids=str)
def test_what_the_journal_has_not_is_told_with_what_it_has(
    path: Path, words: list[str], complaint: str, view: list[str]
) -> None:
    result = run(path, *words, *view, exit_code=2)
    assert complaint in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


def test_no_page_is_written_of_what_is_not_there(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run(path, "--actor", "nobody", "--html", page, exit_code=2)
    assert not page.exists()


def test_filters_that_nothing_meets_together_are_told(path: Path) -> None:
    result = run(path, "--actor", "full", "--kind", "AbortReq", "--timeline")
    assert result.stdout == ""
    assert result.stderr == "nothing is all of that at once\n"


def test_a_tree_is_shown_alone(path: Path) -> None:
    for words in (["--timeline"], ["--actor", "full"], ["--from", "2"], ["--html", "x.html"]):
        result = run(path, "--step", "2", "--tree", *words, exit_code=2)
        assert f"leave out {words[0]}" in " ".join(result.stderr.replace("│", " ").split())


def test_a_journal_is_read_without_loading_torch(path: Path) -> None:
    code = (
        "import sys; from radixtide.cli.main import app\n"
        f"try: app(['inspect', {str(path)!r}, '--timeline'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_filters_read_no_further_than_they_must() -> None:
    source = events(read_journal(BytesIO(journalled(busy_scene))))
    chosen = list(Filter(last=2).choose(source))
    assert chosen[-1].step == 2
    assert next(source).step == 3
