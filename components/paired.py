"""Components whose slots are paired with those of the first one, page by page.

A caller names a token by its Full slot, and :class:`~radixtide.tiers.pairing.Pairing` tells the
slot here. Who owns a Full page owns its pair, so every change of a Full page's owner is followed
here. A tombstone keeps the Full pages of its tokens, so that it can be given pairs again; where
the node is not on the device, what it keeps means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from radixtide.components.api import CARRIER, Slots, StoredSlots, Violation
from radixtide.components.auxiliary import AuxiliaryComponent
from radixtide.components.host import Carriers
from radixtide.components.host_repair import loading_pages
from radixtide.components.outcomes import Census, JobPins, Moving, Reserved, Shortage
from radixtide.components.paired_audit import audit_pairs, audit_pairs_against
from radixtide.configs.errors import InvalidInput, SlotError
from radixtide.configs.schema import CacheConfig
from radixtide.tiers.holdings import Holding
from radixtide.tiers.pairing import NONE, Pairing
from radixtide.tiers.slots import ANONYMOUS, TREE, Pages
from radixtide.tree.node import HostLink, Node
from radixtide.tree.radix_tree import RadixTree


class PairedComponent(AuxiliaryComponent):
    """Base of components with a slot a token, in a pool of their own.

    ``holdings`` has the Full slots of each holder, as the Full component has them: the pairs of
    these are the holder's here.
    """

    def __init__(self, config: CacheConfig, tree: RadixTree, index: int) -> None:
        super().__init__(config, tree, index)
        self.pairing = self._make_pairing()
        self._offsets = np.arange(config.page_size, dtype=np.int32)

    def _make_pairing(self) -> Pairing:
        page = self.page_size
        return Pairing(self.config.pools.full.size // page, self.allocator.pages, page)

    def reset(self) -> None:
        """Forget all nodes and free all slots."""
        super().reset()
        self.pairing = self._make_pairing()

    def stored(self, pages: Any) -> StoredSlots:
        """Return the slots of `pages` as a node keeps them."""
        if self.page_size == 1:
            return pages  # type: ignore[no-any-return]  # an array
        stored: StoredSlots = (pages[:, None] * self.page_size + self._offsets).ravel()
        return stored

    def free_pairs(self, pages: Any) -> int:
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
        if below.host_link is not None:
            self.split_host(prefix, suffix)

    # -- evict ------------------------------------------------------------------------

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

    # -- load -------------------------------------------------------------------------

    def begin_load(
        self, nodes: Sequence[Node], job: int, carriers: Carriers | None = None
    ) -> Moving:
        """As in the base; what is loaded is paired at once, what is not is a tombstone.

        `carriers`: the Full slots of the nodes that come to the device.
        """
        page = self.page_size
        index = self.index
        for node_id, slots in (carriers or {}).items():
            data = self.tree.nodes[node_id].component_data[index]
            if data.value is None:
                data.metadata = {"carriers": (slots[::page] // page).astype(np.int32)}
        moving = super().begin_load(nodes, job, carriers)
        for node in nodes:
            data = node.component_data[index]
            link = data.host_link
            if link is not None and link.loading is not None:
                assert data.metadata is not None
                pages = self.allocator.pages_of(link.loading.astype(np.int64))
                self.pairing.pair(data.metadata["carriers"], pages)
        return moving

    def drop_loading(self, links: Sequence[HostLink]) -> None:
        """Free the slots that loads were filling, and the pairs of these."""
        slots = self.take_loading(links)
        self.pairing.clear(self.allocator.pages_of(slots))
        self.allocator.release(slots)

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
        """As in the base: pairs are taken for fresh Full pages only.

        Raises InvalidInput when a token that is to have one would come into a page that has none.
        """
        holding = self.holdings.get(holder)
        roomy = min(wanted.get(CARRIER, 0), holding.room) if holding is not None else 0
        if holding is not None and roomy and wanted.get(self.name, 0) > wanted[CARRIER] - roomy:
            last = holding.slots(holding.used)[-1:]
            if self.pairing.slots_of(last)[0] == NONE:
                raise InvalidInput(
                    f"pool {self.name}: the request's last page was allocated without slots here, "
                    f"so its next {roomy} tokens can have none; allocate them with "
                    f"{self.name}_num_tokens=0, or the page with them"
                )
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
        self.free_pairs(self._pairs_of(slots))

    def release_holding(self, holder: int) -> int:
        """Free the pairs of all that `holder` holds; return how many slots. Idempotent."""
        holding = self.holdings.pop(holder, None)
        return 0 if holding is None else self.free_pairs(self._pairs_of(holding.slots()))

    def release_paired(self, holder: int, begin: int, end: int) -> int:
        """Free the pairs of the holder's Full slots ``[begin, end)``, whole pages."""
        holding = self.holdings.get(holder)
        if holding is None:
            return 0
        return self.free_pairs(self._pairs_of(holding.slots(end)[begin:]))

    def check_release(self, slots: Slots, holder: int) -> None:
        """Raise SlotError unless the Full `slots` have no pair, or one that `holder` holds."""
        if not len(slots):
            return
        self._check_range(slots)
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
        self.free_pairs(pairs[pairs != NONE])

    def paired_slots(self, slots: Slots) -> Slots:
        """Return the slots here of Full `slots`, -1 where there is none."""
        if len(slots):
            self._check_range(slots)
        return self.pairing.slots_of(slots)

    def _check_range(self, slots: Slots) -> None:
        """Raise SlotError unless `slots`, one at least, are slots of the carrier's pool."""
        size = len(self.pairing.to_pair) * self.page_size
        if int(slots.min()) < 0 or int(slots.max()) >= size:
            raise SlotError(f"pool {self.name}: a slot is not in [0, {size}) of pool {CARRIER}")

    # -- soundness --------------------------------------------------------------------

    def held_pages(self) -> dict[int, Pages]:
        """Return the pairs of the Full pages that each holder has."""
        return {holder: self._pairs_of(held.slots()) for holder, held in self.holdings.items()}

    def audit(
        self,
        locked: dict[int, int],
        ledger: dict[int, tuple[str, int]],
        jobs: JobPins | None = None,
    ) -> list[Violation]:
        """As in the base; and the pairs are mutual, and only of pages that are owned."""
        return [*super().audit(locked, ledger, jobs), *audit_pairs(self)]

    def audit_against(self, carrier: Census) -> list[Violation]:
        """As in the base; and compare the pairs with the Full slots of nodes and holders."""
        return [*super().audit_against(carrier), *audit_pairs_against(self, carrier)]

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
        coming = loading_pages(self, nodes)
        is_coming = np.zeros(self.allocator.pages, dtype=bool)
        for pages in coming.values():
            is_coming[pages] = True
        keep = mutual & (is_tree[pairs] | is_coming[pairs] | (whose >= ANONYMOUS))
        carriers_kept = self.pairing.to_carrier[pairs[keep]].copy()
        pages_kept = pairs[keep]
        self.pairing = self._make_pairing()
        self.pairing.pair(carriers_kept.astype(np.int64), pages_kept)
        held: dict[int, Pages] = {}
        loose = pages_kept[~is_tree[pages_kept] & ~is_coming[pages_kept]]
        owner_of = owners[self.pairing.to_carrier[loose]]
        for holder in np.unique(owner_of):
            held[int(holder)] = loose[owner_of == holder]
        held |= coming
        self.holdings = dict(carrier.holders)
        self.allocator.rebuild(tree_pages, held, keep_anonymous=False)
        for node in nodes:
            data = node.component_data[self.index]
            theirs = carrier.nodes.get(node.id, carrier.loading.get(node.id))
            if data.value is None and theirs is not None:
                data.metadata = {"carriers": (theirs[::page] // page).astype(np.int32)}
