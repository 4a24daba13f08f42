"""The pool of recurrent states: real tensors, real bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixtide import InvalidInput, SlotError
from radixtide.configs.schema import MambaPoolConfig
from radixtide.tiers import StatePool
from radixtide.tiers.kv_pool import DTYPES

CONFIG = MambaPoolConfig(size=5, layers=3, conv_shape=(6, 3), ssm_shape=(2, 4, 5))
PER_LAYER = 6 * 3 * 2 + 2 * 4 * 5 * 4


def filled(config: MambaPoolConfig = CONFIG, size: int = 5) -> StatePool:
    """Return a pool in which every number of every state differs from its neighbours."""
    pool = StatePool(config, size)
    generator = torch.Generator().manual_seed(0)
    for layer in range(pool.layers):
        for view in pool.views(layer):
            view.copy_(torch.rand(view.shape, generator=generator) * 100)
    return pool


def contents(pool: StatePool) -> list[torch.Tensor]:
    return [part.clone() for layer in range(pool.layers) for part in pool.views(layer)]


def test_a_pool_has_two_tensors_a_layer() -> None:
    pool = StatePool(CONFIG, 5)
    assert [[tuple(part.shape) for part in pool.views(layer)] for layer in range(3)] == [
        [(5, 6, 3), (5, 2, 4, 5)]
    ] * 3
    assert [part.dtype for part in pool.views(0)] == [torch.bfloat16, torch.float32]
    assert all(not part.any() for part in contents(pool))
    assert pool.bytes_per_state == 3 * PER_LAYER


def test_the_pool_takes_as_much_memory_as_it_says() -> None:
    pool = StatePool(CONFIG, 5)
    parts = [part for layer in range(3) for part in pool.views(layer)]
    assert sum(part.untyped_storage().nbytes() for part in parts) == 5 * pool.bytes_per_state
    assert len({part.data_ptr() for part in parts}) == 6


def test_views_are_the_memory_itself() -> None:
    pool = StatePool(CONFIG, 5)
    pool.views(1)[0][2] = 7
    assert pool.views(1)[0][2].eq(7).all()
    assert pool.conv[1][2].eq(7).all()
    assert not pool.views(0)[0].any()


def test_a_copy_is_the_same_bytes_in_every_layer_and_touches_nothing_else() -> None:
    pool = filled()
    before = contents(pool)
    pool.copy(1, 4)
    for old, new in zip(before, contents(pool), strict=True):
        assert torch.equal(new[4], old[1])
        assert not torch.equal(new[4], old[4])
        assert torch.equal(new[:4], old[:4])


def test_a_copy_does_not_follow_its_source() -> None:
    pool = filled()
    pool.copy(0, 3)
    kept = [part[3].clone() for part in contents(pool)]
    for layer in range(3):
        for view in pool.views(layer):
            view[0] = 0
    assert all(torch.equal(part[3], old) for part, old in zip(contents(pool), kept, strict=True))


def test_copying_a_state_to_itself_changes_nothing() -> None:
    pool = filled()
    before = contents(pool)
    pool.copy(2, 2)
    assert all(torch.equal(new, old) for new, old in zip(contents(pool), before, strict=True))


@pytest.mark.parametrize(("source", "target"), [(-1, 0), (0, -1), (5, 0), (0, 5)])
def test_a_slot_that_is_not_in_the_pool_is_refused_and_nothing_copied(
    source: int, target: int
) -> None:
    pool = filled()
    before = contents(pool)
    with pytest.raises(SlotError, match=r"state slot (-1|5) is not in \[0, 5\)"):
        pool.copy(source, target)
    assert all(torch.equal(new, old) for new, old in zip(contents(pool), before, strict=True))


@pytest.mark.parametrize("layer", [-1, 3])
def test_a_layer_that_is_not_there_is_refused(layer: int) -> None:
    with pytest.raises(InvalidInput, match=rf"layer {layer} is not in \[0, 3\)"):
        StatePool(CONFIG, 5).views(layer)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_copied_bit_by_bit(name: Any) -> None:
    config = MambaPoolConfig(
        size=2, conv_shape=(4,), ssm_shape=(2, 2), conv_dtype=name, ssm_dtype=name
    )
    pool = StatePool(config, 2)
    for view in pool.views(0):
        assert view.dtype == DTYPES[name]
        view[0] = torch.tensor([0, 1, -2, 4]).view(view.shape[1:]).to(view.dtype)
    pool.copy(0, 1)
    for view in pool.views(0):
        assert torch.equal(view[1].view(torch.uint8), view[0].view(torch.uint8))
        assert view[1].float().flatten().tolist() == [0, 1, -2, 4]


def test_a_pool_on_another_device_has_its_tensors_there() -> None:
    pool = StatePool(MambaPoolConfig(size=4, device="meta"), 4)
    assert {part.device.type for part in pool.views(0)} == {"meta"}
