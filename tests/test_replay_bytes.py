"""The bytes with which a replay finds pages that are not what they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from radixtide.cli.replay_bytes import PoolBytes, WrongBytes, marks_of, pool_bytes
from radixtide.cli.replay_tokens import expand
from radixtide.configs.schema import KvGeometry, MambaPoolConfig
from radixtide.tiers import StatePool, TokenToKVPool

TOKENS = expand([1, 2, 3], [100, 100, 56])


def kv(size: int = 64, **shape: Any) -> PoolBytes:
    section = KvGeometry(size=size, **{"kv_heads": 1, "head_dim": 1, "dtype": "int8", **shape})
    return PoolBytes("full", TokenToKVPool(section, size))


def test_a_mark_is_of_all_tokens_up_to_it() -> None:
    marks = marks_of(TOKENS)
    assert marks.shape == TOKENS.shape
    assert (marks[:150] == marks_of(TOKENS[:150])).all()
    for at in (0, 17, 149):
        other = TOKENS.copy()
        other[at] += 1
        same = marks == marks_of(other)
        assert same[:at].all()
        assert not same[at:].any()


def test_marks_tell_the_order_and_the_place_of_tokens() -> None:
    swapped = TOKENS.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    assert not (marks_of(TOKENS) == marks_of(swapped))[3:].any()
    assert not set(marks_of(TOKENS[1:]).tolist()) & set(marks_of(TOKENS).tolist())
    same = np.full(500, 7)
    assert len(set(marks_of(same).tolist())) == 500


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"layers": 3},
        {"dtype": "bfloat16", "head_dim": 33, "kv_heads": 2},
        {"kind": "mla", "latent_dim": 7, "kv_heads": 1},
    ],
)
def test_what_is_written_is_found_and_nothing_else_is(shape: Any) -> None:
    pool, marks = kv(**shape), marks_of(TOKENS)
    slots = np.random.default_rng(1).permutation(64)[:40]
    pool.write(slots, marks[:40])
    pool.check(slots, marks[:40], "request 1")
    for wrong in (marks[1:41], marks[:40][::-1].copy()):
        with pytest.raises(WrongBytes, match=r"request 1: slot \d+ of pool full, 0 of 40"):
            pool.check(slots, wrong, "request 1")


def test_one_wrong_byte_anywhere_is_found() -> None:
    section = KvGeometry(size=8, layers=2, kv_heads=1, head_dim=24, dtype="float16")
    memory = TokenToKVPool(section, 8)
    pool, marks, slots = PoolBytes("swa", memory), marks_of(TOKENS[:8]), np.arange(8)
    assert pool.bytes_per_slot == 2 * 2 * 24 * 2 == memory.bytes_per_slot
    pool.write(slots, marks)
    for layer in memory.parts():
        for part in layer:
            raw = part.view(8, -1).view(torch.uint8)
            for column in (0, 9, 47):
                raw[5, column] ^= 1
                with pytest.raises(WrongBytes, match=r"slot 5 of pool swa.*\(1 slots are wrong"):
                    pool.check(slots, marks, "x")
                raw[5, column] ^= 1
    pool.check(slots, marks, "x")


def test_bytes_of_a_page_are_hardly_ever_those_of_another() -> None:
    # Two bytes a slot: it is the page that must tell.
    pool = kv(size=512)
    a, b = marks_of(expand([1], [512])), marks_of(expand([2], [512]))
    pool.write(np.arange(512), a)
    with pytest.raises(WrongBytes, match=r"\(5\d\d slots are wrong\)"):
        pool.check(np.arange(512), b, "x")


def test_states_and_pools_without_bytes() -> None:
    states = StatePool(
        MambaPoolConfig(size=4, layers=2, conv_shape=(3, 2), ssm_shape=(5,), conv_dtype="int8"), 4
    )
    pools = pool_bytes({"full": None, "mamba": states, "own": object()})
    assert list(pools) == ["mamba"]
    marks = marks_of(TOKENS[:2])
    pools["mamba"].write(np.array([2]), marks[1:])
    pools["mamba"].check(np.array([2]), marks[1:], "x")
    with pytest.raises(WrongBytes, match="pool mamba"):
        pools["mamba"].check(np.array([1]), marks[1:], "x")
    pools["mamba"].write(np.array([], dtype=np.int64), marks[:0])
