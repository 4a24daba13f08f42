"""Device pools that hold bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixtide import AllocateParams, InvalidInput, RadixtideError, UnifiedRadixCache
from radixtide.configs.schema import FullPoolConfig, KvGeometry, SwaPoolConfig
from radixtide.tiers import TokenToKVPool
from radixtide.tiers.kv_pool import DTYPES
from support.caches import MakeCache, key, make_config, match, store

MHA = FullPoolConfig(size=16, layers=2, kv_heads=3, head_dim=8, dtype="float32")
MLA = FullPoolConfig(size=16, kind="mla", layers=2, latent_dim=40, dtype="float32")
SWA = SwaPoolConfig(size=16, layers=2, kv_heads=5, head_dim=4, dtype="float32")


def state(pool: TokenToKVPool, rows: int, seed: int = 0) -> list[torch.Tensor]:
    """Return random state of `rows` tokens for one layer."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.rand((rows, *buffer.shape[1:]), generator=generator).to(buffer.dtype)
        for buffer in pool.buffers[0]
    ]


@pytest.mark.parametrize(
    ("config", "shapes", "size"),
    [
        (MHA, [(16, 3, 8)] * 2, 2 * 2 * 3 * 8 * 4),
        (MLA, [(16, 1, 40)], 2 * 40 * 4),
        (SWA, [(16, 5, 4)] * 2, 2 * 2 * 5 * 4 * 4),
    ],
    ids=["mha", "mla", "swa"],
)
def test_a_pool_has_the_tensors_of_its_kind(
    config: KvGeometry, shapes: list[tuple[int, ...]], size: int
) -> None:
    pool = TokenToKVPool(config, 16)
    assert [[tuple(part.shape) for part in layer] for layer in pool.buffers] == [shapes] * 2
    assert pool.bytes_per_slot == size
    assert all(part.dtype == torch.float32 for layer in pool.buffers for part in layer)


@pytest.mark.parametrize("config", [MHA, MLA, SWA], ids=["mha", "mla", "swa"])
def test_what_is_written_is_read_from_the_same_slots_only(config: KvGeometry) -> None:
    pool = TokenToKVPool(config, 16)
    slots = torch.tensor([7, 0, 12])
    parts = state(pool, 3)
    pool.write(1, slots, *parts)
    for read, written in zip(pool.read(1, slots), parts, strict=True):
        assert torch.equal(read, written)
    others = torch.tensor([one for one in range(16) if one not in (7, 0, 12)])
    assert all(not part.any() for part in pool.read(1, others))
    assert all(not part.any() for part in pool.read(0, torch.arange(16)))


def test_what_is_read_is_a_copy() -> None:
    pool = TokenToKVPool(MHA, 16)
    pool.read(0, torch.tensor([1]))[0].fill_(5)
    assert not pool.buffers[0][0].any()


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_keeps_what_is_written(name: Any) -> None:
    pool = TokenToKVPool(FullPoolConfig(size=4, kv_heads=1, head_dim=4, dtype=name), 4)
    part = torch.tensor([[[0, 1, 2, 4]]]).to(DTYPES[name])
    pool.write(0, torch.tensor([2]), part, part)
    read = pool.read(0, torch.tensor([2]))
    assert all(one.dtype == DTYPES[name] for one in read)
    assert all(one.float().tolist() == [[[0, 1, 2, 4]]] for one in read)


def _wrong_writes(pool: TokenToKVPool) -> dict[str, tuple[int, list[torch.Tensor]]]:
    good = state(pool, 2)
    return {
        "one tensor": (0, good[:1]),
        "three tensors": (0, [*good, good[0]]),
        "dtype": (0, [part.double() for part in good]),
        "rows": (0, [part[:1] for part in good]),
        "heads": (0, [part[:, :1] for part in good]),
        "second part": (0, [good[0], good[1][:, :, :4]]),
        "no such layer": (2, good),
        "negative layer": (-1, good),
    }


@pytest.mark.parametrize("wrong", _wrong_writes(TokenToKVPool(MHA, 16)))
def test_state_of_the_wrong_form_is_refused_and_nothing_written(wrong: str) -> None:
    pool = TokenToKVPool(MHA, 16)
    layer, parts = _wrong_writes(pool)[wrong]
    with pytest.raises(InvalidInput):
        pool.write(layer, torch.tensor([3, 4]), *parts)
    assert all(not part.any() for one in pool.buffers for part in one)


def test_a_layer_that_is_not_there_can_not_be_read() -> None:
    with pytest.raises(InvalidInput, match=r"layer 2 is not in \[0, 2\)"):
        TokenToKVPool(MHA, 16).read(2, torch.tensor([0]))


@pytest.mark.parametrize(
    "slots",
    [torch.tensor([0, 16]), torch.tensor([-1, 0]), torch.tensor([0.0, 1.0])],
    ids=["beyond", "negative", "floats"],
)
def test_slots_that_are_not_in_the_pool_are_refused(slots: torch.Tensor) -> None:
    pool = TokenToKVPool(MHA, 16)
    with pytest.raises(RadixtideError, match="slot"):
        pool.write(0, slots, *state(pool, 2))
    with pytest.raises(RadixtideError, match="slot"):
        pool.read(0, slots)


def test_a_pool_on_another_device_has_its_tensors_there() -> None:
    pool = TokenToKVPool(FullPoolConfig(size=16, device="meta"), 16)
    assert {part.device.type for layer in pool.buffers for part in layer} == {"meta"}


async def test_a_cache_that_holds_bytes_serves_the_state_that_was_written(
    make_cache: MakeCache,
) -> None:
    async with make_cache(holds_bytes=True) as cache:
        pool = cache.kv_pool
        assert pool is not None
        first = await store(cache, key(8))
        found = (await match(cache, key(8))).device_indices
        parts = state(pool, 8)
        pool.write(0, found, *parts)
        await store(cache, key([*range(4), *range(90, 98)]))
        await cache.allocate(AllocateParams(num_tokens=16))
        again = (await match(cache, key(8))).device_indices
        assert first.inserted_len == 8
        assert all(torch.equal(a, b) for a, b in zip(pool.read(0, again), parts, strict=True))


async def test_a_pool_is_rounded_down_to_whole_pages() -> None:
    cache = UnifiedRadixCache(make_config(size=30, holds_bytes=True))
    assert cache.kv_pool is not None
    assert cache.kv_pool.size == 28
    assert UnifiedRadixCache(make_config()).kv_pool is None
