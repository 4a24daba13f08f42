"""Keys: buffers, namespaces, units, slices, comparison."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
import torch

from radixtide import InvalidKey, RadixKey
from radixtide.tree.key import TOKEN_BYTES, common_units, namespace_bytes, token_bytes

SAME = [7, 0, 2**31, 2**63 - 1, 5]


@pytest.mark.parametrize(
    "given",
    [
        SAME,
        tuple(SAME),
        array("q", SAME),
        array("Q", SAME),
        np.array(SAME, dtype=np.int64),
        np.array(SAME, dtype=np.uint64),
        np.array(SAME + SAME, dtype=np.int64)[: len(SAME)],
        np.repeat(np.array(SAME, dtype=np.int64), 2)[::2],
        torch.tensor(SAME),
    ],
    ids=["list", "tuple", "array", "uarray", "int64", "uint64", "view", "strided", "tensor"],
)
def test_every_container_of_the_same_tokens_makes_the_same_key(given: Any) -> None:
    assert RadixKey(given) == RadixKey(SAME)
    assert hash(RadixKey(given)) == hash(RadixKey(SAME))
    assert RadixKey(given).token_ids.tolist() == SAME


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32])
def test_narrow_integers_are_widened(dtype: Any) -> None:
    assert RadixKey(np.array([1, 2, 3], dtype=dtype)) == RadixKey([1, 2, 3])


def test_numpy_integers_in_a_list_are_integers() -> None:
    given: list[Any] = [np.int64(1), np.int32(2)]
    assert RadixKey(given) == RadixKey([1, 2])


def test_a_key_keeps_a_copy() -> None:
    given = np.array([1, 2, 3], dtype=np.int64)
    made = RadixKey(given)
    given[0] = 99
    assert made.token_ids.tolist() == [1, 2, 3]


def test_the_tokens_of_a_key_can_not_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        RadixKey([1, 2]).token_ids[0] = 5


@pytest.mark.parametrize("empty", [[], (), np.array([]), array("q"), torch.empty(0)], ids=repr)
def test_an_empty_sequence_of_any_kind_makes_an_empty_key(empty: Any) -> None:
    made = RadixKey(empty)
    assert (len(made), made.raw) == (0, b"")


@pytest.mark.parametrize(("tokens", "units"), [(0, 0), (1, 0), (2, 1), (9, 8)])
def test_a_bigram_view_has_one_unit_less_than_tokens(tokens: int, units: int) -> None:
    assert len(RadixKey(list(range(tokens)), is_bigram=True)) == units


def test_a_bigram_view_differs_from_the_plain_key() -> None:
    assert RadixKey([1, 2]) != RadixKey([1, 2], is_bigram=True)
    assert RadixKey([1, 2]) != [1, 2]


@pytest.mark.parametrize(
    ("length", "page", "aligned"), [(0, 4, 0), (3, 4, 0), (4, 4, 4), (7, 4, 4), (7, 1, 7)]
)
def test_a_key_is_cut_to_whole_pages(length: int, page: int, aligned: int) -> None:
    assert RadixKey(list(range(length))).aligned(page) == aligned


def test_a_prefix_has_the_namespace_and_the_first_units() -> None:
    whole = RadixKey([1, 2, 3, 4], "adapter", "salt")
    short = whole.prefix(2)
    assert short == RadixKey([1, 2], "adapter", "salt")
    assert whole.prefix(4) is whole
    assert len(whole.prefix(0)) == 0


def test_a_prefix_of_bigrams_keeps_the_token_of_look_ahead() -> None:
    whole = RadixKey([1, 2, 3, 4], is_bigram=True)
    assert whole.prefix(2) == RadixKey([1, 2, 3], is_bigram=True)
    assert whole.prefix(0).raw == b""


@pytest.mark.parametrize("units", [-1, 5])
def test_a_prefix_longer_than_the_key_is_refused(units: int) -> None:
    with pytest.raises(InvalidKey, match=f"prefix of {units} units of a key of 4"):
        RadixKey([1, 2, 3, 4]).prefix(units)


def test_a_piece_carries_the_look_ahead_of_bigrams() -> None:
    tokens = [10, 11, 12, 13, 14]
    plain = np.frombuffer(RadixKey(tokens).piece(1, 3), dtype=np.int64)
    pairs = np.frombuffer(RadixKey(tokens, is_bigram=True).piece(1, 3), dtype=np.int64)
    assert plain.tolist() == [11, 12]
    assert pairs.tolist() == [11, 12, 13]


def test_the_default_namespace_is_empty_and_all_others_differ() -> None:
    spaces = [
        (None, None),
        ("", None),
        (None, ""),
        ("", ""),
        ("a", None),
        (None, "a"),
        ("a", "b"),
        ("b", "a"),
        ("ab", ""),
        ("", "ab"),
        ("a\0", "b"),
        ("a", "\0b"),
        ("ä", None),
    ]
    names = [namespace_bytes(*space) for space in spaces]
    assert names[0] == b""
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("names", [("a\ud800", None), (None, "a\ud800")])
def test_a_name_that_is_no_text_is_refused_as_any_bad_key(
    names: tuple[str | None, str | None],
) -> None:
    with pytest.raises(InvalidKey, match="half of a surrogate pair"):
        RadixKey([1, 2], *names)


def test_a_namespace_can_not_be_mistaken_for_tokens() -> None:
    name = namespace_bytes("x", None)
    forged = name + RadixKey([1, 2]).raw
    forged += b"\0" * (-len(forged) % TOKEN_BYTES)
    plain = RadixKey(np.frombuffer(forged, dtype=np.int64) & (2**63 - 1))
    assert plain.namespace == b""
    assert plain != RadixKey([1, 2], "x")


def test_a_salt_is_not_shown() -> None:
    shown = repr(RadixKey(list(range(10)), "adapter", "secret"))
    assert "secret" not in shown
    assert shown == (
        "RadixKey([0, 1, 2, 3, 4, 5, ...], units=10, extra_key='adapter', cache_salt=<hidden>)"
    )
    assert repr(RadixKey([1])) == "RadixKey([1], units=1)"


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("lookahead", [0, TOKEN_BYTES])
def test_common_units_counts_what_a_loop_would(page: int, lookahead: int) -> None:
    generator = np.random.default_rng(page + lookahead)
    extra = lookahead // TOKEN_BYTES
    for _ in range(300):
        mine = generator.integers(0, 2, size=int(generator.integers(1, 20)))
        theirs = generator.integers(0, 2, size=int(generator.integers(1, 12)))
        offset = int(generator.integers(0, len(mine)))
        limit = (
            int(generator.integers(offset, len(mine) + 1 - extra))
            if len(mine) - extra >= offset
            else offset
        )
        expected = 0
        while (
            offset + expected < limit
            and expected + extra < len(theirs)
            and (mine[offset + expected : offset + expected + 1 + extra].tolist())
            == theirs[expected : expected + 1 + extra].tolist()
        ):
            expected += 1
        found = common_units(token_bytes(mine), offset, limit, token_bytes(theirs), lookahead)
        assert found == expected, (mine, offset, limit, theirs)
