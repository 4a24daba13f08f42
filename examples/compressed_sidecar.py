"""A component of one's own: a compressed copy of the KV cache, one page id for each 128 tokens.

Some layers of the imagined model read a compressed copy where there is one, and the KV cache itself
where there is none. So a copy saves time, and its absence is never wrong: this component shortens
no match. docs/plugins.md explains it step by step.

A *group* is 128 tokens of a prefix, from a multiple of 128 to the next. It belongs to the node in
which it ends. A node has the page ids of all its groups or of none (a tombstone), and none also
where no group ends in it. As this goes by depth alone, a split shares the ids exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import numpy as np
import torch

from radixtide import (
    AllocateParams,
    AuxiliaryComponent,
    CacheConfig,
    ConfigError,
    EvictParams,
    InsertCheck,
    Insertion,
    InsertParams,
    InsertPart,
    MatchPrefixParams,
    Node,
    RadixKey,
    RadixTree,
    SlotAllocator,
    UnifiedRadixCache,
    Violation,
    plugin_section,
    register_component,
)
from radixtide.components.api import Slots, StoredSlots
from radixtide.components.base import Validator
from radixtide.components.outcomes import Census, JobPins
from radixtide.configs.schema import FullPoolConfig, PoolsConfig
from radixtide.tiers.slots import TREE

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class SidecarConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The section ``[plugins.sidecar]``.

    ``size``: page ids of the pool. ``tokens_per_id``: tokens that one stands for, whole pages.
    ``width``: numbers in a copy; 0 keeps the books of the ids without memory behind them.
    """

    size: Count
    tokens_per_id: Count = 128
    width: Annotated[int, msgspec.Meta(ge=0)] = 0


class Sidecar(AuxiliaryComponent):
    """The compressed copies of prefixes."""

    name = "sidecar"
    votes = False
    independent = True

    def __init__(self, config: CacheConfig, tree: RadixTree, index: int) -> None:
        # First of all: the base class makes the pool's books.
        self.section = section = plugin_section(config, self.name, SidecarConfig)
        if section.tokens_per_id % config.page_size:
            raise ConfigError(
                f"config: plugins.{self.name}.tokens_per_id: {section.tokens_per_id} is not a "
                f"multiple of page_size ({config.page_size}); a group must end with a page"
            )
        super().__init__(config, tree, index)

    # -- the pool -----------------------------------------------------------------

    def make_allocator(self) -> SlotAllocator:
        """Return the books of the pool: a page id is a page of its own."""
        return SlotAllocator(self.section.size, 1, self.name)

    def make_memory(self) -> torch.Tensor | None:
        """Return one row for each page id; it is ``cache.memory["sidecar"]``."""
        width = self.section.width
        return torch.zeros((self.section.size, width)) if width else None

    # -- which groups are a node's --------------------------------------------------

    def groups(self, start: int, end: int) -> int:
        """Return how many groups end within ``(start, end]``."""
        tokens = self.section.tokens_per_id
        return end // tokens - start // tokens

    def groups_of(self, node: Node) -> int:
        """Return how many groups end in `node`."""
        return self.groups(node.start, node.end)

    # -- match ----------------------------------------------------------------------

    def create_match_validator(self, match_device_only: bool) -> Validator:
        """Accept every node: what has no copy is read from the KV cache."""
        return lambda node, units: True

    def finalize_match_result(self, path: Sequence[Node], holder: int | None = None) -> None:
        """Note that the copies on `path` were used."""
        self.use(path)

    def use(self, nodes: Sequence[Node]) -> None:
        """Make the copies on `nodes` the most recent; what most prompts share, most of all."""
        for node in reversed(nodes):
            data = self.data(node)
            if data.value is not None:
                self.recency.promote(data)

    # -- insert -----------------------------------------------------------------------

    def check_insert(self, job: Insertion) -> InsertCheck:
        """Ask for the page ids of the new groups, and of those on the way that have none.

        Not for more than there can be. Where they run out a border is wanted, so that what comes
        before it has its copies.
        """
        walk = job.walk
        above = kept = 0
        for node in (*walk.path, walk.inside) if walk.inside is not None else walk.path:
            data = self.data(node)
            if data.value is None:
                above += self.groups(node.start, min(node.end, job.matched))
            elif not data.lock_ref:
                # Nothing is won where copies on the way make room for others.
                kept += len(data.value)
        wanted = above + self.groups(job.matched, job.end)
        needs = min(wanted, self.allocator.free + self.evictable - kept)
        if above < needs < wanted:
            tokens = self.section.tokens_per_id
            border = (job.matched // tokens + needs - above) * tokens
            return InsertCheck(cuts=(border,), needs=needs)
        return InsertCheck(needs=needs)

    def apply_insert(self, job: Insertion) -> InsertPart:
        """Give the page ids to the nodes that lack theirs, while they last."""
        granted = job.granted[self.index] if job.granted is not None else None
        ids = np.empty(0, dtype=np.int64)
        if granted is not None:
            # Should this hook have failed half way, it is called again: what it took is the tree's.
            ids = granted[self.allocator.owners()[granted] != TREE]
            self.holdings.clear()
        adopted: list[tuple[int, int]] = []
        nodes = (*job.walk.path, *job.leaves)
        for node in nodes:
            count = self.groups_of(node)
            if self.data(node).value is None and 0 < count <= len(ids):
                own, ids = ids[:count], ids[count:]
                self.allocator.adopt(own)
                self.attach(node, own.astype(np.int32))
                tokens = self.section.tokens_per_id
                adopted.append((node.start // tokens * tokens, node.end // tokens * tokens))
        self.allocator.release(ids)
        self.use(nodes)
        return InsertPart(tuple(adopted))

    # -- split ------------------------------------------------------------------------

    def redistribute_on_node_split(self, prefix: Node, suffix: Node) -> None:
        """Give `prefix` the ids of the groups that end in it, and the locks that reach over it."""
        above, below = self.data(prefix), self.data(suffix)
        above.lock_ref = below.lock_ref
        ids = below.value
        # By depths: several splits may have been made before this hook hears of the first.
        cut = 0 if ids is None else len(ids) - self.groups(prefix.end, suffix.end)
        if ids is None or cut <= 0:
            return
        above.value = ids[:cut].copy()
        self.recency.insert_before(above, below)
        if cut < len(ids):
            below.value = ids[cut:].copy()
        else:
            below.value = None
            self.recency.remove(below)

    # -- lock -------------------------------------------------------------------------

    def covered(self, node: Node) -> Iterator[Node]:
        """Yield the whole path: a request reads every copy of its prefix."""
        while node.parent is not None:
            yield node
            node = node.parent

    # -- what others may ask ----------------------------------------------------------

    def path_slots(self, path: Sequence[Node]) -> Slots:
        """Return the page id of each group that ends on `path`, or -1.

        For ``cache.device_indices(node, "sidecar")``: item g is group g of the prefix.
        """
        parts: list[StoredSlots] = []
        for node in path:
            ids = self.data(node).value
            parts.append(np.full(self.groups_of(node), -1, np.int32) if ids is None else ids)
        return np.concatenate(parts, dtype=np.int64)

    def describe(self, node: Node) -> str:
        """Return a few words for ``pretty_print``."""
        ids = self.data(node).value
        if ids is not None:
            return f"{self.name}: page ids {', '.join(map(str, ids))}"
        return f"{self.name}: {self.groups_of(node)} groups without a copy"

    # -- soundness --------------------------------------------------------------------

    def expected_size(self, node: Node) -> int:
        """Return how many page ids `node` has where it has any: one for each of its groups."""
        return self.groups_of(node)

    def fits(self, node: Node, value: StoredSlots, carrier: Census) -> bool:
        """Return whether a repair after a crash may keep `value`."""
        return len(value) > 0 and super().fits(node, value, carrier)

    def audit(
        self,
        locked: dict[int, int],
        ledger: dict[int, tuple[str, int]],
        jobs: JobPins | None = None,
    ) -> list[Violation]:
        """As in the base; and a value is never empty, and an id held only while an insert runs."""
        found = super().audit(locked, ledger, jobs)
        for data in self.recency:
            if data.value is not None and not len(data.value):
                found.append(
                    Violation("copies", f"{self.name}: {data.node} has a value without page ids")
                )
        if held := self.allocator.held:
            found.append(
                Violation("copies", f"pool {self.name}: {held} page ids are held by no insert")
            )
        return found

    def rebuild_books(self, nodes: list[Node], carrier: Census) -> None:
        """Free what no node has: page ids are held only while an insert runs, and none does."""
        self.holdings.clear()
        self.allocator.rebuild(self.slots_on(nodes), {}, keep_anonymous=False)


# -- how an engine would use it -----------------------------------------------------------

CONFIG = CacheConfig(
    components=("full", "sidecar"),
    pools=PoolsConfig(full=FullPoolConfig(size=1024, holds_bytes=False)),
    plugins={"sidecar": {"size": 6, "width": 1}},
)
GROUP = 128


async def prefill(cache: UnifiedRadixCache, name: str, tokens: list[int]) -> None:
    """Cache a prompt, and compress what has no copy yet."""
    key = RadixKey(tokens)
    match = await cache.match_prefix(MatchPrefixParams(key=key))
    hit = len(match.device_indices)
    own = await cache.allocate(AllocateParams(num_tokens=len(tokens) - hit))
    value = torch.cat((match.device_indices, own.indices))
    done = await cache.insert(InsertParams(key=key, value=value, prev_prefix_len=hit))
    ids = await cache.device_indices(done.last_device_node, "sidecar")
    fresh = done.component_adopted.get("sidecar", ())
    for begin, end in fresh:
        for group in range(begin // GROUP, end // GROUP):
            # Where the compression kernel would run, from the slots of the group's tokens.
            mean = np.mean(tokens[group * GROUP : (group + 1) * GROUP])
            cache.memory["sidecar"][ids[group]] = float(mean)
    shown = ", ".join(f"{begin} to {end}" for begin, end in fresh)
    print(f"{name}: {hit} of {len(tokens)} tokens cached; compressed now: {shown or 'nothing'}")


async def look(cache: UnifiedRadixCache, name: str, tokens: list[int]) -> None:
    """Say what is cached of a prompt, and which copies there are."""
    match = await cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens)))
    ids = (await cache.device_indices(match.last_device_node, "sidecar")).tolist()
    memory = cache.memory["sidecar"]
    copies = ["no copy" if at < 0 else f"id {at} (mean {float(memory[at, 0]):g})" for at in ids]
    print(f"{name}: {len(match.device_indices)} tokens cached; {', '.join(copies)}")


async def main() -> None:
    register_component("sidecar", Sidecar)
    first = list(range(400))
    second = [*first[:200], *range(2000, 2100)]
    async with UnifiedRadixCache(CONFIG) as cache:
        await prefill(cache, "first", first)
        await prefill(cache, "second", second)
        print(await cache.pretty_print())
        await look(cache, "first", first)
        await look(cache, "second", second)
        evicted = await cache.evict(EvictParams(others={"sidecar": 3}))
        print(f"evicted {evicted.others['sidecar']} page ids, {evicted.num_tokens_evicted} tokens")
        await look(cache, "first", first)
        await prefill(cache, "first again", first)
        pool = (await cache.stats()).pools["sidecar"]["device"]
        print(f"page ids: {pool.free} free, {pool.evictable} in use of {pool.size}")
        print("sound:", (await cache.audit()).ok)


if __name__ == "__main__":
    asyncio.run(main())
