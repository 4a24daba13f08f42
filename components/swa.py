"""Sliding-window attention: one slot a token in a smaller pool, wanted for the last tokens only.

The slots of this pool are *paired* with those of full attention, page by page: a caller names a
token by its Full slot, and :class:`~radixtide.tiers.pairing.Pairing` tells the slot here. Who owns
a Full page owns its pair, so every change of a Full page's owner is followed here.

A prefix can be reused when the last ``window`` tokens before its end all have a value, or when no
node on the whole path lacks one. A node whose value was evicted, or never given, is a tombstone;
it keeps the Full pages of its tokens, so that an insert that brings the state along can repair it:
the pair then moves over to the tree's Full pages, which never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from radixtide.components.api import (
    CARRIER,
    ComponentType,
    MissReason,
    Ranges,
    Slots,
    StoredSlots,
    Violation,
)
from radixtide.components.auxiliary import AuxiliaryComponent
from radixtide.components.base import Census, Reserved, Shortage, Validator
from radixtide.components.insertion import InsertCheck, Insertion, InsertPart
from radixtide.components.swa_audit import audit_pairs, audit_pairs_against
from radixtide.configs.errors import SlotError
from radixtide.configs.schema import CacheConfig
from radixtide.tiers.holdings import Holding
from radixtide.tiers.kv_pool import TokenToKVPool
from radixtide.tiers.pairing import NONE, Pairing
from radixtide.tiers.slots import ANONYMOUS, TREE, Pages, SlotAllocator
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


class SwaComponent(AuxiliaryComponent):
    """Sliding-window state: slots of ``pools.swa``.

    ``holdings`` has the Full slots of each holder, as the Full component has them: the pairs of
    these are the holder's here.
    """

    name = ComponentType.SWA
    miss_reason = MissReason.WINDOW_GAP
    reach: int

    def __init__(self, config: CacheConfig, tree: RadixTree, index: int) -> None:
        assert config.window is not None and config.pools.swa is not None
        page = config.page_size
        self.window = config.window
        self.reach = -(-config.window // page) * page
        super().__init__(config, tree, index)
        self.pairing = self._make_pairing()
        self._offsets = np.arange(page, dtype=np.int32)

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

    def _make_pairing(self) -> Pairing:
        page = self.page_size
        return Pairing(self.config.pools.full.size // page, self.allocator.pages, page)

    def reset(self) -> None:
        """Forget all nodes and free all slots."""
        super().reset()
        self.pairing = self._make_pairing()

    # -- match ----------------------------------------------------------------------

    def create_match_validator(self, match_device_only: bool) -> Validator:
        """Accept where the window is whole, or where no node before lacked a value."""
        index = self.index
        window = self.window
        run = 0
        gap = False

        def accepts(node: Node, units: int) -> bool:
            nonlocal run, gap
            if node.component_data[index].value is None:
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
        stored = self._stored(pairs)
        adopted: list[tuple[int, int]] = []
        taken = 0
        for node in walk.path:
            data = node.component_data[index]
            if data.value is not None or node.end <= live:
                continue
            start = node.start
            if start >= live:
                span = slice((start - first) // page, (node.end - first) // page)
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
            freed = self._free_rest(job, first, pairs, adopted)
        if job.value is None:
            self.holdings[job.holder].drop_front(walk.limit)
        self._promote_window(job.node)
        return InsertPart(merged(adopted), freed=freed)

    def _free_rest(
        self, job: Insertion, first: int, pairs: Any, adopted: list[tuple[int, int]]
    ) -> int:
        """Free what is the caller's no longer and was of no use; return how many slots.

        Pairs of new tombstones, and those of duplicates, unless the caller goes on with these until
        its row is rewritten.
        """
        page = self.page_size
        useless = pairs != NONE
        for start, end in adopted:
            useless[(start - first) // page : (end - first) // page] = False
        if job.running and first < job.matched:
            useless[: (job.matched - first) // page] = False
        return self._free_pairs(pairs[useless])

    def _stored(self, pages: Any) -> StoredSlots:
        """Return the slots of `pages` as a node keeps them."""
        if self.page_size == 1:
            return pages  # type: ignore[no-any-return]  # an array
        stored: StoredSlots = (pages[:, None] * self.page_size + self._offsets).ravel()
        return stored

    def _free_pairs(self, pages: Any) -> int:
        """Free held `pages` of this pool, and forget whose pairs they were; return the slots."""
        if not len(pages):
            return 0
        self.pairing.clear(pages)
        self.allocator.release_pages(pages.astype(np.int64))
        return len(pages) * self.page_size

    # -- split ------------------------------------------------------------------------

    def redistribute_on_node_split(self, prefix: Node, suffix: Node) -> None:
        """Cut the slots in two; both are covered by the locks that covered the whole."""
        self.copy_lock(prefix, suffix)
        above = prefix.component_data[self.index]
        below = suffix.component_data[self.index]
        # From their ends: the prefix may have been cut again by a split that comes after this one.
        if below.value is not None:
            cut = len(below.value) - suffix.length
            above.value = below.value[:cut].copy()
            below.value = below.value[cut:].copy()
            self.recency.insert_before(above, below)
        elif below.metadata is not None:
            carriers = below.metadata["carriers"]
            cut = len(carriers) - suffix.length // self.page_size
            above.metadata = {"carriers": carriers[:cut].copy()}
            below.metadata = {"carriers": carriers[cut:].copy()}

    # -- evict ------------------------------------------------------------------------

    def eviction_priority(self, is_leaf: bool) -> int:
        """Return 0 for a leaf, 1 inside: what lives by the window goes with it, not the reverse."""
        return 0 if is_leaf else 1

    def evict_nodes(self, nodes: Sequence[Node]) -> int:
        """Make `nodes` tombstones; return how many slots that freed."""
        values: list[StoredSlots] = []
        for node in nodes:
            value = self.detach(node)
            if value is not None:
                values.append(value)
                carriers = self.pairing.to_carrier[value[:: self.page_size] // self.page_size]
                node.component_data[self.index].metadata = {"carriers": carriers}
        if values:
            heads = np.concatenate([value[:: self.page_size] for value in values])
            self.pairing.clear(heads // self.page_size)
        return self.free_values(values)

    # -- slots ------------------------------------------------------------------------

    def _fresh(self, wanted: dict[str, int], holder: int) -> tuple[int, int]:
        """Return how many fresh Full pages an allocation takes, and how many get a pair.

        The last tokens get one, as many as are wanted of this pool.
        """
        page = self.page_size
        tokens = wanted.get(CARRIER, 0)
        holding = self.holdings.get(holder)
        fresh = max(tokens - (holding.room if holding is not None else 0), 0)
        pages = -(-fresh // page)
        need = min(wanted.get(self.name, 0), fresh)
        return pages, pages - (fresh - need) // page if need else 0

    def quote(self, wanted: dict[str, int], holder: int) -> Shortage | None:
        """As in the base: pairs are taken for fresh Full pages only."""
        pages = self._fresh(wanted, holder)[1]
        slots = pages * self.page_size
        return Shortage(slots, self.sizes()) if slots > self.allocator.free else None

    def grant(self, wanted: dict[str, int], holder: int, carrier: Reserved | None) -> Slots | None:
        """Pair the Full pages just taken; return the pairs of all slots of the allocation."""
        if carrier is None:
            return None
        tokens = wanted.get(CARRIER, 0)
        fresh, paired = self._fresh(wanted, holder)
        slots = carrier.slots
        taken = slots[len(slots) - fresh * self.page_size :]
        if holder != ANONYMOUS:
            holding = self.holdings.get(holder)
            if holding is None:
                holding = self.holdings[holder] = Holding(holder)
            roomy = len(holding.use_room(tokens))
            if fresh:
                holding.extend(taken.copy(), tokens - roomy)
        if paired:
            pages = self.allocator.pages_of(self.allocator.take(paired, holder))
            heads = taken[(fresh - paired) * self.page_size :: self.page_size]
            self.pairing.pair(heads // self.page_size, pages)
        return self.pairing.slots_of(slots)

    def ungrant(self, holder: int, carrier: Reserved | None, used: int, own: Slots | None) -> None:
        """Undo a grant: free the pairs of the Full pages that are given back."""
        if carrier is None:
            return
        slots = carrier.slots
        if holder != ANONYMOUS:
            holding = self.holdings.get(holder)
            if holding is None:
                return
            slots = holding.shrink(carrier.position, self.page_size)
            if not holding.total:
                del self.holdings[holder]
        self.carrier_released(slots)

    def _pairs_of(self, slots: Slots) -> Any:
        """Return the distinct pages here that are paired with the pages of Full `slots`."""
        carriers = slots[:: self.page_size] // self.page_size
        pairs = self.pairing.to_pair[carriers]
        return pairs[pairs != NONE]

    def carrier_released(self, slots: Slots) -> None:
        """Free the pairs of Full `slots`, which are whole pages."""
        self._free_pairs(self._pairs_of(slots))

    def release_holding(self, holder: int) -> int:
        """Free the pairs of all that `holder` holds; return how many slots. Idempotent."""
        holding = self.holdings.pop(holder, None)
        return 0 if holding is None else self._free_pairs(self._pairs_of(holding.slots()))

    def release_paired(self, holder: int, begin: int, end: int) -> int:
        """Free the pairs of the holder's Full slots ``[begin, end)``, whole pages."""
        holding = self.holdings.get(holder)
        if holding is None:
            return 0
        return self._free_pairs(self._pairs_of(holding.slots(end)[begin:]))

    def check_release(self, slots: Slots, holder: int) -> None:
        """Raise SlotError unless the Full `slots` have no pair, or one that `holder` holds."""
        if not len(slots):
            return
        size = len(self.pairing.to_pair) * self.page_size
        if int(slots.min()) < 0 or int(slots.max()) >= size:
            raise SlotError(f"pool {self.name}: a slot is not in [0, {size}) of pool {CARRIER}")
        pairs = self.pairing.to_pair[slots // self.page_size]
        pairs = pairs[pairs != NONE]
        owners = self.allocator.owners()[pairs]
        if (wrong := np.flatnonzero(owners != holder)).size:
            pair = int(pairs[wrong[0]])
            slot = int(self.pairing.to_carrier[pair]) * self.page_size
            whose = "the tree's" if int(owners[wrong[0]]) == TREE else "held by somebody else"
            raise SlotError(
                f"pool {self.name}: what is paired with Full slot {slot} is {whose}, "
                "not the caller's to give"
            )

    def release(self, slots: Slots) -> None:
        """Free the pairs of every page that Full `slots` touch."""
        pages = np.unique(slots // self.page_size)
        pairs = self.pairing.to_pair[pages]
        self._free_pairs(pairs[pairs != NONE])

    def paired_slots(self, slots: Slots) -> Slots:
        """Return the slots here of Full `slots`, -1 where there is none."""
        size = len(self.pairing.to_pair) * self.page_size
        if len(slots) and (int(slots.min()) < 0 or int(slots.max()) >= size):
            raise SlotError(f"pool {self.name}: a slot is not in [0, {size}) of pool {CARRIER}")
        return self.pairing.slots_of(slots)

    # -- soundness --------------------------------------------------------------------

    def held_pages(self) -> dict[int, Pages]:
        """Return the pairs of the Full pages that each holder has."""
        return {holder: self._pairs_of(held.slots()) for holder, held in self.holdings.items()}

    def audit(self, locked: dict[int, int], ledger: dict[int, tuple[str, int]]) -> list[Violation]:
        """As in the base; and the pairs are mutual, and only of pages that are owned."""
        return [*super().audit(locked, ledger), *audit_pairs(self)]

    def audit_against(self, carrier: Census) -> list[Violation]:
        """Compare the pairs with the Full slots of nodes and holders."""
        return audit_pairs_against(self, carrier)

    def expected_size(self, node: Node) -> int:
        """Return a slot for each unit."""
        return node.length

    def fits(self, node: Node, value: StoredSlots, carrier: Census) -> bool:
        """Return whether `value` is as long as `node` and paired with its Full slots."""
        theirs = carrier.nodes[node.id]
        if len(value) != node.length or len(theirs) != node.length:
            return False
        page = self.page_size
        return np.array_equal(self.pairing.to_pair[theirs[::page] // page], value[::page] // page)

    def rebuild_books(self, nodes: list[Node], carrier: Census) -> None:
        """Keep the pairs of nodes with a value and of Full pages that are held; free all others."""
        page = self.page_size
        owners = np.asarray(carrier.owners)
        tree_pages = self.allocator.pages_of(self.slots_on(nodes))
        pairs = np.flatnonzero(self.pairing.to_carrier != NONE)
        whose = owners[self.pairing.to_carrier[pairs]]
        mutual = self.pairing.to_pair[self.pairing.to_carrier[pairs]] == pairs
        is_tree = np.zeros(self.allocator.pages, dtype=bool)
        is_tree[tree_pages] = True
        keep = mutual & (is_tree[pairs] | (whose >= ANONYMOUS))
        carriers_kept = self.pairing.to_carrier[pairs[keep]].copy()
        pages_kept = pairs[keep]
        self.pairing = self._make_pairing()
        self.pairing.pair(carriers_kept.astype(np.int64), pages_kept)
        held: dict[int, Pages] = {}
        loose = pages_kept[~is_tree[pages_kept]]
        owner_of = owners[self.pairing.to_carrier[loose]]
        for holder in np.unique(owner_of):
            held[int(holder)] = loose[owner_of == holder]
        self.holdings = dict(carrier.holders)
        self.allocator.rebuild(tree_pages, held, keep_anonymous=False)
        for node in nodes:
            data = node.component_data[self.index]
            if data.value is None:
                theirs = carrier.nodes[node.id]
                data.metadata = {"carriers": (theirs[::page] // page).astype(np.int32)}
