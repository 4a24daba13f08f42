"""Host pools: one canonical order of a page's bytes in both layouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash

from radixtide.configs.errors import InvalidInput, SlotError
from radixtide.tiers.digests import Bytes
from radixtide.tiers.host_pool import HostPool
from radixtide.tiers.page_rows import as_run, runs_of, whole_pages
from support.copies import KINDS, LAYOUTS, page_bytes, page_size_of, parts_of, slots_of

PAGES = 9


def pool_of(kind: str, layout: str, page_size: int) -> HostPool:
    size = page_size_of(kind, page_size)
    return HostPool(parts_of(kind, 5 * size), PAGES * size, size, layout)


def random_pages(pool: HostPool, count: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, (count, pool.page_bytes), dtype=np.uint8)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_from_the_same_pages_only(
    kind: str, layout: str, page_size: int
) -> None:
    pool = pool_of(kind, layout, page_size)
    pages = np.array([7, 2, 3, 8])
    data = random_pages(pool, 4)
    pool.write_pages(pages, data)
    out = np.zeros_like(data)
    pool.read_pages(pages, out)
    assert np.array_equal(out, data)
    others = np.array([0, 1, 4, 5, 6])
    out = np.ones((5, pool.page_bytes), dtype=np.uint8)
    pool.read_pages(others, out)
    assert not out.any()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_both_layouts_have_the_same_bytes_of_a_page(kind: str, page_size: int) -> None:
    pools = [pool_of(kind, layout, page_size) for layout in LAYOUTS]
    data = random_pages(pools[0], 3)
    pages = np.array([4, 0, 5])
    for pool in pools:
        pool.write_pages(pages, data)
    wanted = [xxhash.xxh3_64_intdigest(page.tobytes()) for page in data]
    assert [pool.digests(pages).tolist() for pool in pools] == [wanted, wanted]
    assert pools[0].page_bytes == pools[1].page_bytes
    for page, row in zip(pages.tolist(), data, strict=True):
        assert np.array_equal(pools[1].page_view(page), row)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_a_page_is_layer_part_token_row(kind: str) -> None:
    pool = pool_of(kind, "layer_first", 4)
    data = random_pages(pool, PAGES)
    pool.write_pages(np.arange(PAGES), data)
    found = page_bytes(pool.tensors, pool.page_size, np.arange(PAGES))
    assert np.array_equal(found, data)
    first = pool.tensors[1][0][: pool.page_size].reshape(-1).view(torch.uint8)
    start = sum(pool.pieces[0])
    assert np.array_equal(first.numpy(), data[0, start : start + pool.pieces[1][0]])


def test_a_layer_first_pool_has_tensors_like_the_devices() -> None:
    parts = parts_of("mha", 20)
    pool = HostPool(parts, 32, 4, "layer_first")
    shapes = [[tuple(part.shape[1:]) for part in layer] for layer in parts]
    assert [[tuple(part.shape[1:]) for part in layer] for layer in pool.tensors] == shapes
    assert all(len(part) == 32 for layer in pool.tensors for part in layer)
    assert all(part.dtype == torch.bfloat16 for layer in pool.tensors for part in layer)
    assert (pool.pages, pool.layers, pool.nbytes) == (8, 3, 8 * pool.page_bytes)


def test_a_page_view_is_the_memory_itself() -> None:
    pool = pool_of("mha", "page_first", 4)
    pool.page_view(3)[:] = 7
    out = np.zeros((1, pool.page_bytes), dtype=np.uint8)
    pool.read_pages(np.array([3]), out)
    assert (out == 7).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_digest_tells_what_its_page_is(layout: str) -> None:
    pool = pool_of("mha", layout, 4)
    data = random_pages(pool, 1)
    right = [page.copy() for page in (data, data, data, data)]
    # One bit; two words changed places; two layers changed places; half of it is older.
    right[0][0, 100] ^= 64
    right[1][0, 0:8], right[1][0, 8:16] = data[0, 8:16], data[0, 0:8]
    layer = sum(pool.pieces[0])
    right[2][0, :layer], right[2][0, layer : 2 * layer] = (
        data[0, layer : 2 * layer],
        data[0, :layer],
    )
    right[3][0, pool.page_bytes // 2 :] = 0
    digests = set()
    for page in (data, *right):
        pool.write_pages(np.array([5]), page)
        digests.add(int(pool.digests(np.array([5]))[0]))
    assert len(digests) == 5


def test_wrong_pools_are_refused() -> None:
    parts = parts_of("mha", 8)
    with pytest.raises(InvalidInput, match="layout"):
        HostPool(parts, 8, 4, "page_head")
    for slots, page_size in ((0, 4), (6, 4), (8, 0), (2, 4)):
        with pytest.raises(InvalidInput, match="pages"):
            HostPool(parts, slots, page_size)
    with pytest.raises(InvalidInput, match="layer"):
        HostPool([], 8, 4)
    with pytest.raises(InvalidInput, match="contiguous"):
        HostPool([[torch.zeros(8, 6)[:, ::2]]], 8, 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_wrong_pages_and_bytes_are_refused_and_change_nothing(layout: str) -> None:
    pool = pool_of("mla", layout, 4)
    data = random_pages(pool, 2)
    for pages in ([0, PAGES], [-1, 0]):
        with pytest.raises(SlotError):
            pool.write_pages(np.array(pages), data)
        with pytest.raises(SlotError):
            pool.digests(np.array(pages))
    with pytest.raises(InvalidInput):
        pool.write_pages(np.array([0]), data)
    with pytest.raises(InvalidInput):
        pool.read_pages(np.array([0, 1]), data.astype(np.int8))
    out = np.ones((PAGES, pool.page_bytes), dtype=np.uint8)
    pool.read_pages(np.arange(PAGES), out)
    assert not out.any()
    if layout == "layer_first":
        with pytest.raises(InvalidInput, match="page_first"):
            pool.page_view(0)
    else:
        with pytest.raises(SlotError):
            pool.page_view(PAGES)


def test_pages_of_slots_are_whole_pages_only() -> None:
    assert whole_pages(slots_of(np.array([3, 1]), 4), 4, 4, "x").tolist() == [3, 1]
    assert whole_pages(np.array([5, 0]), 1, 6, "x").tolist() == [5, 0]
    assert len(whole_pages(np.array([], dtype=np.int64), 4, 4, "x")) == 0
    for slots in ([4, 5, 6], [4, 5, 7, 6], [1, 2, 3, 4], [-4, -3, -2, -1], [16, 17, 18, 19]):
        with pytest.raises(SlotError):
            whole_pages(np.array(slots), 4, 4, "x")


def test_runs_of_pages() -> None:
    assert runs_of(np.array([4, 5, 6, 2, 3, 9])) == [(0, 4, 3), (3, 2, 2), (5, 9, 1)]
    assert runs_of(np.array([], dtype=np.int64)) == []
    assert as_run(np.array([4, 5, 6])) == slice(4, 7)
    assert as_run(np.array([], dtype=np.int64)) == slice(0, 0)
    # Ends that would fit a run, with the middle out of order.
    assert isinstance(as_run(np.array([4, 6, 5, 7])), np.ndarray)
