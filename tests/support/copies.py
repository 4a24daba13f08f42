"""Pools, host pools and jobs for tests of copies: every kind, layout and page size."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import torch

from radixtide.configs.schema import FullPoolConfig, MambaPoolConfig
from radixtide.tiers.copy_engine import CopyEngine, CopyJob, CopyResult, Direction, Transfer
from radixtide.tiers.host_pool import HostPool
from radixtide.tiers.kv_pool import TokenToKVPool
from radixtide.tiers.page_rows import Parts, rows_of
from radixtide.tiers.slots import Pages, Slots
from radixtide.tiers.state_pool import StatePool

KINDS: Final = ("mha", "mla", "state")
LAYOUTS: Final = ("layer_first", "page_first")
WAIT_S: Final = 30.0
"""Nothing here takes so long; who waits longer waits forever."""


def parts_of(kind: str, slots: int, device: str = "cpu", layers: int = 3) -> Parts:
    """Return the tensors of a device pool of `kind`, small rows of odd sizes."""
    if kind == "mha":
        config = FullPoolConfig(
            size=slots, layers=layers, kv_heads=3, head_dim=6, dtype="bfloat16", device=device
        )
        return TokenToKVPool(config, slots).parts()
    if kind == "mla":
        config = FullPoolConfig(
            size=slots, kind="mla", layers=layers, latent_dim=20, dtype="float8_e5m2", device=device
        )
        return TokenToKVPool(config, slots).parts()
    return StatePool(
        MambaPoolConfig(
            size=slots, layers=layers, conv_shape=(6, 3), ssm_shape=(2, 5, 4), device=device
        ),
        slots,
    ).parts()


def page_size_of(kind: str, page_size: int) -> int:
    """Return slots a page: a state is a page of its own."""
    return 1 if kind == "state" else page_size


def stamp(parts: Parts, page_size: int, pages: Pages, seeds: Iterable[int]) -> None:
    """Fill each of `pages` with bytes that its seed and place decide, other ones in each part."""
    rows = [rows_of(part, page_size) for layer in parts for part in layer]
    ends = np.cumsum([0, *(part.shape[1] for part in rows)]).tolist()
    made = np.stack(
        [
            np.random.default_rng(seed).integers(0, 256, ends[-1], dtype=np.uint8)
            for _, seed in zip(pages.tolist(), seeds, strict=True)
        ]
    )
    index = torch.from_numpy(pages).to(rows[0].device)
    for part, start, stop in zip(rows, ends[:-1], ends[1:], strict=True):
        part[index] = torch.from_numpy(made[:, start:stop]).to(part.device)
    if index.is_cuda:
        # The streams of copies know nothing of these writes.
        torch.cuda.synchronize()


def page_bytes(parts: Parts, page_size: int, pages: Pages) -> np.ndarray[Any, Any]:
    """Return the bytes of `pages` in canonical order: uint8 (pages, bytes)."""
    index = torch.from_numpy(np.ascontiguousarray(pages))
    rows = [rows_of(part, page_size) for layer in parts for part in layer]
    found: np.ndarray[Any, Any] = torch.cat([part.cpu()[index] for part in rows], dim=1).numpy()
    return found


def slots_of(pages: Pages, page_size: int) -> Slots:
    """Return the slots of `pages`, in order."""
    return (np.asarray(pages)[:, None] * page_size + np.arange(page_size)).ravel().astype(np.int64)


class Bed:
    """A device pool, its host pool, an engine over both, and what the engine answers.

    ``answers`` has a result a job, in the order in which jobs ended.
    """

    def __init__(
        self,
        make: Callable[[dict[str, tuple[Parts, HostPool]]], CopyEngine],
        kinds: Iterable[str] = ("mha",),
        *,
        pages: int = 24,
        page_size: int = 4,
        layout: str = "layer_first",
        device: str = "cpu",
        layers: int = 3,
    ) -> None:
        self.kinds = tuple(kinds)
        self.pages = pages
        self.page_sizes = {kind: page_size_of(kind, page_size) for kind in self.kinds}
        self.parts = {
            kind: parts_of(kind, pages * size, device, layers)
            for kind, size in self.page_sizes.items()
        }
        self.hosts = {
            kind: HostPool(self.parts[kind], pages * size, size, layout)
            for kind, size in self.page_sizes.items()
        }
        self.engine = make({kind: (self.parts[kind], self.hosts[kind]) for kind in self.kinds})
        self.answers: queue.SimpleQueue[CopyResult] = queue.SimpleQueue()
        self._number = 0

    def transfer(self, kind: str, device: Iterable[int], host: Iterable[int]) -> Transfer:
        """Return a transfer between pages."""
        size = self.page_sizes[kind]
        ends = [slots_of(np.array(list(pages), dtype=np.int64), size) for pages in (device, host)]
        return Transfer(kind, *ends)

    def submit(self, direction: Direction, *transfers: Transfer, **more: Any) -> int:
        """Submit a job and return its number."""
        self._number += 1
        more.setdefault("on_done", self.answers.put)
        self.engine.submit(CopyJob(self._number, direction, transfers, **more))
        return self._number

    def answer(self) -> CopyResult:
        """Return the next result, which must come."""
        return self.answers.get(timeout=WAIT_S)

    def run(self, direction: Direction, *transfers: Transfer, **more: Any) -> CopyResult:
        """Submit a job and return its result, which is the next."""
        number = self.submit(direction, *transfers, **more)
        result = self.answer()
        assert result.number == number
        return result

    def device_bytes(self, kind: str, pages: Iterable[int]) -> np.ndarray[Any, Any]:
        """Return the bytes of pages of the device pool."""
        index = np.array(list(pages), dtype=np.int64)
        return page_bytes(self.parts[kind], self.page_sizes[kind], index)

    def host_bytes(self, kind: str, pages: Iterable[int]) -> np.ndarray[Any, Any]:
        """Return the bytes of pages of the host pool, by its own reading."""
        index = np.array(list(pages), dtype=np.int64)
        out = np.empty((len(index), self.hosts[kind].page_bytes), dtype=np.uint8)
        self.hosts[kind].read_pages(index, out)
        return out

    def stamp(self, kind: str, pages: Iterable[int], seeds: Iterable[int]) -> None:
        """Fill pages of the device pool."""
        index = np.array(list(pages), dtype=np.int64)
        stamp(self.parts[kind], self.page_sizes[kind], index, seeds)


def round_trip(bed: Bed, seed: int, batches: int = 3) -> None:
    """Move random pages of every kind to the host and to other pages of the device, and compare.

    Some pages are runs at one end or both, some lie anywhere.
    """
    choice = np.random.default_rng(seed)
    for batch in range(batches):
        count = int(choice.integers(1, bed.pages // 2))
        ends: dict[str, tuple[list[int], list[int], list[int]]] = {}
        for kind in bed.kinds:
            ways: list[list[int]] = []
            for _ in range(3):
                if choice.integers(2):
                    first = int(choice.integers(0, bed.pages - count + 1))
                    ways.append(list(range(first, first + count)))
                else:
                    ways.append(choice.permutation(bed.pages)[:count].tolist())
            ends[kind] = (ways[0], ways[1], ways[2])
            bed.stamp(kind, ways[0], range(1000 * batch, 1000 * batch + count))
        sent = {kind: bed.device_bytes(kind, ends[kind][0]) for kind in bed.kinds}
        others = {
            kind: [page for page in range(bed.pages) if page not in ends[kind][1]]
            for kind in bed.kinds
        }
        untouched = {kind: bed.host_bytes(kind, others[kind]) for kind in bed.kinds}
        out = bed.run(
            "backup", *(bed.transfer(kind, ends[kind][0], ends[kind][1]) for kind in bed.kinds)
        )
        assert out.ok, out.error
        for kind in bed.kinds:
            assert np.array_equal(bed.host_bytes(kind, ends[kind][1]), sent[kind])
            assert np.array_equal(bed.host_bytes(kind, others[kind]), untouched[kind])
            host_pages = np.array(ends[kind][1], dtype=np.int64)
            assert out.digests[kind].tolist() == bed.hosts[kind].digests(host_pages).tolist()
            bed.stamp(kind, range(bed.pages), range(7000, 7000 + bed.pages))
        rest = {
            kind: [page for page in range(bed.pages) if page not in ends[kind][2]]
            for kind in bed.kinds
        }
        kept = {kind: bed.device_bytes(kind, rest[kind]) for kind in bed.kinds}
        back = bed.run(
            "load",
            *(bed.transfer(kind, ends[kind][2], ends[kind][1]) for kind in bed.kinds),
            digests=out.digests,
        )
        assert back.ok, back.error
        for kind in bed.kinds:
            assert np.array_equal(bed.device_bytes(kind, ends[kind][2]), sent[kind])
            assert np.array_equal(bed.device_bytes(kind, rest[kind]), kept[kind])
