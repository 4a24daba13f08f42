"""Trace files: both public forms, and every way in which a line can be wrong."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtide.cli.replay_source import TraceRequest, summarise
from radixtide.cli.replay_tokens import ID_LIMIT, expand, output_id
from radixtide.cli.replay_trace import BLOCKS_16, BLOCKS_512, TraceFile
from radixtide.configs.errors import TraceError

BLOCK_LINE = {"timestamp": 27, "input_length": 600, "output_length": 5, "hash_ids": [3, 9]}
CHAT_LINE = {
    "chat_id": 159,
    "parent_chat_id": 55,
    "timestamp": 61.114,
    "input_length": 33,
    "output_length": 13,
    "type": "text",
    "turn": 2,
    "hash_ids": [1, 2, 3],
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writer(*lines: Mapping[str, Any] | str | bytes) -> Path:
        raw = [
            line
            if isinstance(line, bytes)
            else (line if isinstance(line, str) else json.dumps(line)).encode()
            for line in lines
        ]
        path = tmp_path / "trace.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in raw))
        return path

    return writer


def test_blocks_of_512_tokens_come_with_times_in_milliseconds(write: Write) -> None:
    trace = TraceFile(write(BLOCK_LINE))
    assert trace.form is BLOCKS_512
    assert list(trace) == [
        TraceRequest(0, 27_000_000, (3, 9), (512, 88), output_id(0), 5),
    ]


def test_a_session_is_served_one_request_after_the_other(write: Write) -> None:
    trace = TraceFile(write({**BLOCK_LINE, "session_id": "s1"}, BLOCK_LINE))
    assert [(r.name, r.after) for r in trace] == [("s1", "s1"), (None, None)]


def test_blocks_of_16_tokens_come_with_chats_and_times_in_seconds(write: Write) -> None:
    root = {**CHAT_LINE, "chat_id": 160, "parent_chat_id": -1, "turn": 1}
    trace = TraceFile(write(CHAT_LINE, root))
    assert trace.form is BLOCKS_16
    assert list(trace) == [
        TraceRequest(0, 61_114_000_000, (1, 2, 3), (16, 16, 1), output_id(0), 13, 159, 55),
        TraceRequest(1, 61_114_000_000, (1, 2, 3), (16, 16, 1), output_id(1), 13, 160, None),
    ]


def test_blank_lines_are_passed_over_and_counted_as_lines(write: Write) -> None:
    path = write("", BLOCK_LINE, "  ", "{")
    with pytest.raises(TraceError, match=r"trace\.jsonl:4: not JSON"):
        list(TraceFile(path))


def test_time_does_not_run_backwards(write: Write) -> None:
    trace = TraceFile(write({**BLOCK_LINE, "timestamp": 9}, {**BLOCK_LINE, "timestamp": 4}))
    assert [request.arrival_ns for request in trace] == [9_000_000, 9_000_000]


def test_a_limit_hides_what_lies_behind_it(write: Write) -> None:
    assert len(list(TraceFile(write(BLOCK_LINE, BLOCK_LINE, "not json"), limit=2))) == 2


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("not json", "not JSON: JSON is malformed"),
        ('{"timestamp": 1', "not JSON: Input data was truncated"),
        (
            json.dumps(BLOCK_LINE | {"session_id": "?"}).encode().replace(b"?", b"\xff"),
            "not JSON: ",
        ),
        ('{"deep": ' + "[" * 100_000, "not JSON: "),
        ("[1, 2]", "Expected `object`, got `array`"),
        ("{}", "missing required field `timestamp`"),
        ({**BLOCK_LINE, "timestamp": -1}, r"`float` >= 0(\.0)? - at `\$\.timestamp`"),
        ({**BLOCK_LINE, "timestamp": 1e300}, "timestamp 1e[+]300 is too large"),
        ({**BLOCK_LINE, "input_length": -600}, r"`int` >= 1 - at `\$\.input_length`"),
        ({**BLOCK_LINE, "input_length": 0, "hash_ids": []}, r"at `\$\.input_length`"),
        ({**BLOCK_LINE, "input_length": 600.5}, r"Expected `int`, got `float`"),
        ({**BLOCK_LINE, "output_length": -1}, r"`int` >= 0 - at `\$\.output_length`"),
        ({**BLOCK_LINE, "hash_ids": [3, "9"]}, r"got `str` - at `\$\.hash_ids\[1\]`"),
        ({**BLOCK_LINE, "hash_ids": [3, -9]}, r"at `\$\.hash_ids\[1\]`"),
        ({**BLOCK_LINE, "hash_ids": [3, 2**70]}, r"at `\$\.hash_ids\[1\]`"),
        (
            {**BLOCK_LINE, "hash_ids": [3]},
            "1 hash_ids, but input_length 600 makes 2 blocks of 512 tokens",
        ),
        (
            {**BLOCK_LINE, "hash_ids": [3, 9, 4]},
            "3 hash_ids, but input_length 600 makes 2 blocks of 512 tokens",
        ),
        (CHAT_LINE, "the first line has the form '512-token blocks', this one has not"),
    ],
)
def test_a_wrong_line_is_named_with_file_and_line(
    write: Write, line: Mapping[str, Any] | str | bytes, what: str
) -> None:
    path = write(BLOCK_LINE, line)
    with pytest.raises(TraceError, match=what) as caught:
        list(TraceFile(path))
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_chat_line_needs_its_chat_id(write: Write) -> None:
    line = {key: value for key, value in CHAT_LINE.items() if key != "chat_id"}
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: .*chat_id"):
        list(TraceFile(write(line)))


def test_an_empty_file_is_no_trace(write: Write) -> None:
    with pytest.raises(TraceError, match="holds no request"):
        TraceFile(write())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.jsonl: can not be read: No such file"):
        TraceFile(tmp_path / "absent.jsonl")


def test_totals_count_each_block_prefix_once(write: Write) -> None:
    other = {**BLOCK_LINE, "input_length": 1024, "hash_ids": [9, 3], "timestamp": 50}
    trace = TraceFile(write(BLOCK_LINE, BLOCK_LINE, other))
    summary = summarise(trace, trace.block, distinct=True)
    # Blocks 9 and 3 behind other blocks than before are other prefixes.
    assert (summary.requests, summary.blocks, summary.distinct_tokens) == (3, 6, 4 * 512)
    assert (summary.input_tokens, summary.output_tokens) == (2224, 15)
    assert (summary.longest, summary.span_ns) == (1029, 50_000_000)
    assert summarise(trace, trace.block, distinct=False).distinct_tokens == 0


IDS = st.integers(0, 2 * ID_LIMIT - 1)


@given(IDS, IDS)
def test_different_ids_differ_within_two_tokens(one: int, other: int) -> None:
    same = np.array_equal(expand([one], [2]), expand([other], [2]))
    assert same == (one == other)


@given(st.lists(st.tuples(IDS, st.integers(1, 40)), max_size=8))
def test_a_block_expands_alike_wherever_it_stands(blocks: list[tuple[int, int]]) -> None:
    ids, lengths = [one for one, _ in blocks], [length for _, length in blocks]
    tokens = expand(ids, lengths)
    apart = [expand([one], [length]) for one, length in blocks]
    assert np.array_equal(tokens, np.concatenate([*apart, np.empty(0, np.int64)]))
    assert tokens.dtype == np.int64
    assert ((tokens >= 0) & (tokens < 2**31)).all()


def test_a_shorter_block_is_the_head_of_the_longer() -> None:
    assert np.array_equal(expand([77], [512])[:100], expand([77], [100]))


def test_an_id_enters_its_whole_block() -> None:
    # Ids that differ in one bit agree in no more tokens than chance allows.
    one, other = expand([4], [512]), expand([5], [512])
    assert np.count_nonzero(one == other) <= 2  # the second token is the high half of the id
    assert len(np.unique(one)) > 500
