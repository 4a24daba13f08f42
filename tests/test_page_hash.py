"""Names of stored pages: the chain hashes and the identity of the bytes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtide.configs.errors import InvalidInput
from radixtide.tiers.page_hash import framed, identity, namespace_seed, page_hashes


def hashes(
    tokens: list[int], page: int, bigram: bool = False, previous: bytes | None = None
) -> list[str]:
    data = page_hashes(np.array(tokens, np.int64).tobytes(), page, bigram, previous)
    return [data[at : at + 32].hex() for at in range(0, len(data), 32)]


ONE_TO_EIGHT = list(range(1, 9))


@pytest.mark.parametrize(
    ("tokens", "bigram", "extra_key", "expected"),
    [
        (
            ONE_TO_EIGHT,
            False,
            None,
            [
                "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
                "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6",
            ],
        ),
        (
            [*ONE_TO_EIGHT, 9],
            True,
            None,
            [
                "f721fe42aac11dcbfd1a17f24cc5765a0d5b6bc264d1c0b6581d775a7344c11f",
                "c35ad698917936a474f7e55f3a4855eaee20585cd0bf156b1ae3a62666ba7220",
            ],
        ),
        (
            ONE_TO_EIGHT,
            False,
            "tenantA",
            [
                "db64201913c44015e033ddb4fee172b3e10a92a087bb8dfa3556f8059222766f",
                "c53e388e624d63ff4def3556efc1d252beff20ff0e03ce2fe619a362cff2931b",
            ],
        ),
        (
            [1, 2, 2**40, 4],
            False,
            None,
            ["199f14d3c2e45a93e0c39cef382488c7897784a1d8b74c6f1e5258faa46d277f"],
        ),
    ],
    ids=("plain", "bigram", "namespace", "wide"),
)
def test_golden_chains(
    tokens: list[int], bigram: bool, extra_key: str | None, expected: list[str]
) -> None:
    assert hashes(tokens, 4, bigram, namespace_seed(extra_key, None)) == expected


@pytest.mark.parametrize(
    ("extra_key", "salt", "expected"),
    [
        ("tenantA", None, "d13976d7b0b5b60f1cbc0f855ef7ec6508f443565049355270b55bbffeeeed33"),
        (None, "s1", "82bf52060ac4846a68db76addaf8351f01fc5558e3512755d222cbd8632771a2"),
    ],
)
def test_golden_seeds(extra_key: str | None, salt: str | None, expected: str) -> None:
    seed = namespace_seed(extra_key, salt)
    assert seed is not None
    assert seed.hex() == expected


def test_the_namespace_without_a_name_has_no_seed() -> None:
    assert namespace_seed(None, None) is None


def test_an_absent_part_of_a_namespace_is_not_an_empty_one_and_parts_do_not_run_together() -> None:
    names = [None, "", "a", "b", "ab", "a\0", "\0a", "s1"]
    seeds = [namespace_seed(key, salt) for key in names for salt in names]
    assert len(set(seeds)) == len(names) ** 2


def test_the_same_name_as_adapter_and_as_salt_are_two_namespaces() -> None:
    assert namespace_seed("x", None) != namespace_seed(None, "x")
    assert namespace_seed("x", None) == namespace_seed("x", None)


@given(
    tokens=st.lists(st.integers(0, 2**40), min_size=1, max_size=40),
    page=st.integers(1, 5),
    bigram=st.booleans(),
    cut=st.integers(0, 7),
)
def test_a_chain_goes_on_where_a_split_ended_it(
    tokens: list[int], page: int, bigram: bool, cut: int
) -> None:
    whole = hashes(tokens, page, bigram)
    at = cut * page
    head = hashes(tokens[: at + bigram], page, bigram) if at else []
    previous = bytes.fromhex(head[-1]) if head else None
    if at + bigram <= len(tokens):
        assert head + hashes(tokens[at:], page, bigram, previous) == whole


def test_one_wide_token_changes_the_words_of_its_own_page_only() -> None:
    assert hashes([1, 2, 3, 2**32], 2)[0] == hashes([1, 2], 2)[0]
    assert hashes([2**32 - 1, 2**32 - 1], 2) != hashes([2**32, 2**32 - 1], 2)


def test_a_token_that_looks_like_two_is_told_apart() -> None:
    assert hashes([5, 0], 2) != hashes([5], 1)


def test_nothing_has_no_hashes() -> None:
    assert page_hashes(b"", 4, False, None) == b""
    assert page_hashes(np.array([1], np.int64).tobytes(), 4, True, None) == b""


@pytest.mark.parametrize("previous", [b"", b"x" * 31, b"x" * 33])
def test_a_hash_before_that_is_none_is_refused(previous: bytes) -> None:
    with pytest.raises(InvalidInput):
        page_hashes(bytes(8), 1, False, previous)


def test_negative_tokens_and_empty_pages_are_refused() -> None:
    with pytest.raises(InvalidInput, match="negative"):
        hashes([3, -1], 1)
    with pytest.raises(InvalidInput, match="page"):
        hashes([3], 0)


BASE: dict[str, Any] = {
    "model": "m",
    "weight_version": "1",
    "dtype": "bfloat16",
    "layout": "page_first",
    "page_size": 16,
    "rank": 0,
    "ranks": 2,
    "geometry": {"kv": {"layers": 2, "heads": 4}},
}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("model", "m2"),
        ("weight_version", "2"),
        ("dtype", "float16"),
        ("layout", "layer_first"),
        ("page_size", 32),
        ("rank", 1),
        ("ranks", 1),
        ("geometry", {"kv": {"layers": 2, "heads": 8}}),
        ("geometry", {"kv": {"layers": 2, "heads": 4}, "states": {}}),
    ],
)
def test_whatever_the_bytes_depend_on_changes_the_identity(name: str, other: object) -> None:
    assert identity(**BASE) == identity(**BASE)
    assert identity(**BASE) != identity(**{**BASE, name: other})


def test_neighbours_in_an_identity_do_not_run_together() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    names = {identity(**{**BASE, "model": a, "weight_version": b}) for a, b in pairs}
    assert len(names) == len(pairs)


def test_a_mapping_is_told_by_its_content_not_by_its_order() -> None:
    turned = {**BASE, "geometry": {"kv": {"heads": 4, "layers": 2}}}
    assert identity(**BASE) == identity(**turned)


def test_an_identity_is_part_of_a_name() -> None:
    name = identity(**BASE)
    assert len(name) == 32
    assert set(name) <= set("0123456789abcdef")


def test_no_two_values_have_the_same_frame() -> None:
    values: list[Any] = [
        *(None, True, False, 0, 1, -1, 10, "", "1", "n", b"", b"1", [], {}, [[]], [1], ["1"]),
        *([1, 0], [10], [[1], 0], [[1, 0]], {"1": 0}, [["1", 0]], ["1", 0], {"a": {}}, {"a": []}),
        *([None], [True], [b"1"], ["ab", "c"], ["a", "bc"], {"a": 1, "b": 2}, {"a": "1", "b": 2}),
    ]
    for one, other in combinations(values, 2):
        assert framed(one) != framed(other), (one, other)


def test_what_is_no_plain_data_is_refused() -> None:
    with pytest.raises(InvalidInput, match="float"):
        framed([1.5])  # type: ignore[list-item]  # the wrong type is the test
