"""Sliding-window attention: one slot a token in a smaller pool, wanted for the last tokens only.

A prefix can be reused when the last ``window`` tokens before its end all have a value, or when no
node on the whole path lacks one. A tombstone is repaired by an insert that brings the state along:
the pair (see :mod:`.paired`) then moves over to the tree's Full pages, which never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from radixtide.components.api import (
    ComponentType,
    MissReason,
    Ranges,
    Slots,
)
from radixtide.components.base import Validator
from radixtide.components.insertion import InsertCheck, Insertion, InsertPart
from radixtide.components.paired import PairedComponent
from radixtide.configs.host import bytes_per_slot
from radixtide.configs.schema import CacheConfig
from radixtide.tiers.kv_pool import TokenToKVPool
from radixtide.tiers.pairing import NONE
from radixtide.tiers.slots import Pages, SlotAllocator
from radixtide.tree.node import Node
from radixtide.tree.radix_tree import RadixTree


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    """Return ascending `ranges` with those that touch made one."""
    whole: list[tuple[int, int]] = []
    for start, end in ranges:
        if whole and whole[-1][1] == start:
            whole[-1] = (whole[-1][0], end)
        else:
            whole.append((start, end))
    return tuple(whole)


class SwaComponent(PairedComponent):
    """Sliding-window state: slots of ``pools.swa``."""

    name = ComponentType.SWA
    miss_reason = MissReason.WINDOW_GAP
    reach: int

    def __init__(self, config: CacheConfig, tree: RadixTree, index: int) -> None:
        assert config.window is not None and config.pools.swa is not None
        page = config.page_size
        self.window = config.window
        self.reach = -(-config.window // page) * page
        super().__init__(config, tree, index)

    def make_memory(self) -> TokenToKVPool | None:
        """Return K and V, or the latents, of every slot."""
        pool = self.config.pools.swa
        assert pool is not None
        return TokenToKVPool(pool, self.allocator.size) if pool.holds_bytes else None

    def make_allocator(self) -> SlotAllocator:
        """Return the books of ``pools.swa``, whole pages of it."""
        assert self.config.pools.swa is not None
        page = self.config.page_size
        size = self.config.pools.swa.size
        return SlotAllocator(size - size % page, page, self.name)

    def bytes_per_slot(self) -> int:
        """Return what a token takes over all layers."""
        assert self.config.pools.swa is not None
        return bytes_per_slot(self.config.pools.swa)

    # -- match ----------------------------------------------------------------------

    def create_match_validator(self, match_device_only: bool) -> Validator:
        """Accept where the window is whole, or where no node before lacked a value."""
        index = self.index
        window = self.window
        run = 0
        gap = False

        def accepts(node: Node, units: int) -> bool:
            nonlocal run, gap
            data = node.component_data[index]
            if data.value is None and (match_device_only or data.host_value is None):
                gap = True
                run = 0
                return False
            run += units
            return not gap or run >= window

        return accepts

    def validate_path(
        self, path: Sequence[Node], inside: Node | None, inside_units: int, match_device_only: bool
    ) -> Sequence[int]:
        """As in the base, without a call a node. O(steps)."""
        if not match_device_only and self.host_allocator is not None:
            return super().validate_path(path, inside, inside_units, False)
        index = self.index
        window = self.window
        start = path[0].start if path else 0
        whole_from = start
        gap = False
        votes: list[int] = []
        at = 0
        for node in path:
            at += 1
            end = node.end
            if node.component_data[index].value is None:
                gap = True
                whole_from = end
            elif not gap or end - whole_from >= window:
                votes.append(at)
        if inside is not None and inside.component_data[index].value is not None:
            end = (path[-1].end if path else inside.start) + inside_units
            if not gap or end - whole_from >= window:
                votes.append(at + 1)
        return votes

    def finalize_match_result(self, path: Sequence[Node], holder: int | None = None) -> None:
        """Promote the nodes of the window, the nearest last."""
        if path:
            self._promote_window(path[-1])

    def _promote_window(self, node: Node) -> None:
        """Make the values in reach of `node`'s end the most recent, the nearest most of all."""
        index = self.index
        low = node.end - self.reach
        near: list[Any] = []
        at = node
        while at.end > low and at.parent is not None:
            data = at.component_data[index]
            if data.value is not None:
                near.append(data)
            at = at.parent
        promote = self.recency.promote
        for data in reversed(near):
            promote(data)

    # -- insert -----------------------------------------------------------------------

    def _carriers(self, job: Insertion) -> Slots | None:
        """Return the Full slots of the walk's units; None when the holder has not so many."""
        if job.value is not None:
            return job.value
        holding = self.holdings.get(job.holder)
        if holding is None or holding.used < job.walk.limit:
            return None
        return holding.slots(job.walk.limit)

    def check_insert(self, job: Insertion) -> InsertCheck:
        """Find the pairs that come with the insert, and the borders that their use needs.

        The live part is what comes last without a gap: from the caller's evicted length, or from
        behind the last token whose pair was given back already. Whose the slots are is checked by
        the Full component in the same step.
        """
        walk = job.walk
        base = walk.base
        page = self.page_size
        matched = job.matched
        end = base + walk.limit
        first = max(base, job.prev)
        slots = self._carriers(job)
        if slots is None:
            return InsertCheck()
        heads = slots[first - base : walk.limit : page]
        carriers: Pages = heads if page == 1 else heads // page
        # What is out of range is refused by the Full component; here it must only do no harm.
        pairs = self.pairing.to_pair.take(carriers, mode="clip")
        live = first
        if len(pairs):
            missing = np.flatnonzero(pairs < 0)
            if len(missing):
                live = first + (int(missing[-1]) + 1) * page
        frontier = job.evicted.get(self.name, 0) if job.evicted is not None else 0
        if frontier > live:
            live = min(-(-frontier // page) * page, end)
        border = end - self.reach
        cuts: tuple[int, ...] = ()
        if live < matched:
            if self._is_tombstone_across(job, live):
                cuts = (live,)
        elif matched < live < end:
            cuts = (live,)
        if border > 0 and (job.running or (border > matched and border > live)):
            cuts = (*cuts, border)
        return InsertCheck((first, live, carriers, pairs), cuts)

    def _is_tombstone_across(self, job: Insertion, depth: int) -> bool:
        """Return whether `depth` is within a node that has no value."""
        index = self.index
        inside = job.walk.inside
        if inside is not None and job.walk.last.end < depth:
            return inside.component_data[index].value is None
        for node in reversed(job.walk.path):
            start = node.start
            if start <= depth:
                return start < depth < node.end and node.component_data[index].value is None
        return False

    def apply_insert(self, job: Insertion) -> InsertPart:
        """Attach the live pairs to new nodes and to tombstones; free what nobody needs."""
        walk = job.walk
        index = self.index
        page = self.page_size
        first, live, carriers, pairs = job.checked[index].found
        stored = self.stored(pairs)
        adopted: list[tuple[int, int]] = []
        taken = 0
        there = job.matched if job.device_matched < 0 else job.device_matched
        if there < job.matched:
            self._revive(job, there)
        for node in walk.path:
            data = node.component_data[index]
            if data.value is not None or node.end <= live:
                continue
            start = node.start
            if start >= live:
                link = data.host_link
                if link is not None and link.loading is not None:
                    # Its slots are on their way already.
                    continue
                span = slice((start - first) // page, (node.end - first) // page)
                if start < there:
                    assert data.metadata is not None
                    self.pairing.move(carriers[span], data.metadata["carriers"])
                self.allocator.adopt(pairs[span])
                self.attach(node, stored[start - first : node.end - first].copy())
                adopted.append((start, node.end))
                taken += span.stop - span.start
        if job.leaves:
            start = job.matched
            for leaf in job.leaves:
                end = leaf.end
                if start >= live:
                    self.attach(leaf, stored[start - first : end - first].copy())
                else:
                    gone = carriers[(start - first) // page : (end - first) // page]
                    leaf.component_data[index].metadata = {"carriers": gone.astype(np.int32)}
                start = end
            # The leaves' part of what is live is one run of pages at the end.
            begin = max(job.matched, live)
            if begin < start:
                pages = pairs[(begin - first) // page :]
                self.allocator.adopt(pages)
                adopted.append((begin, start))
                taken += len(pages)
        freed = 0
        if taken < len(pairs):
            freed = self._free_rest(job, there, first, pairs, adopted)
        if job.value is None:
            self.holdings[job.holder].drop_front(walk.limit)
        self._promote_window(job.node)
        return InsertPart(merged(adopted), freed=freed)

    def _revive(self, job: Insertion, depth: int) -> None:
        """Note the Full pages of the nodes from `depth` on, which the insert brings back."""
        first, _, carriers, _ = job.checked[self.index].found
        page = self.page_size
        for node in job.walk.path:
            if (start := node.start) >= depth:
                pages = carriers[(start - first) // page : (node.end - first) // page]
                record = node.component_data[self.index]
                record.metadata = {"carriers": pages.astype(np.int32)}

    def _free_rest(
        self,
        job: Insertion,
        there: int,
        first: int,
        pairs: Any,
        adopted: list[tuple[int, int]],
    ) -> int:
        """Free what is the caller's no longer and was of no use; return how many slots.

        Pairs of new tombstones, and those of duplicates, unless the caller goes on with these until
        its row is rewritten.
        """
        page = self.page_size
        useless = pairs != NONE
        for start, end in adopted:
            useless[(start - first) // page : (end - first) // page] = False
        if job.running and first < there:
            useless[: (there - first) // page] = False
        return self.free_pairs(pairs[useless])

    # -- evict ------------------------------------------------------------------------

    def eviction_priority(self, is_leaf: bool) -> int:
        """Return 0 for a leaf, 1 inside: what lives by the window goes with it, not the reverse."""
        return 0 if is_leaf else 1
