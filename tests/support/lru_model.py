"""What a store with a size limit holds, worked out anew from the list of what was done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from radixtide.tiers.storage import PageKey


class LruModel:
    """Chains with their parents, sizes and last uses; the slow way.

    `limit`: bytes. `size`: what a page of so many bytes counts for.
    """

    def __init__(self, limit: int, size: Callable[[int], int]) -> None:
        self.limit = limit
        self.size = size
        self.pools: dict[str, dict[str, int]] = {}
        self.parents: dict[str, str | None] = {}
        self.uses: dict[str, int] = {}
        self.clock = 0

    def use(self, chain: str) -> None:
        if chain in self.pools:
            self.clock += 1
            self.uses[chain] = self.clock

    def total(self) -> int:
        return sum(sum(pools.values()) for pools in self.pools.values())

    def leaves(self) -> list[str]:
        # A chain that is held by its children alone keeps its own parent too.
        needed = set()
        for chain in self.pools:
            above = self.parents[chain]
            while above is not None and above not in needed:
                needed.add(above)
                above = self.parents.get(above)
        return [chain for chain in self.pools if chain not in needed]

    def put(self, keys: Sequence[PageKey], length: int) -> bool:
        """Store one node; False if there is no room for it, and then nothing is changed."""
        before = ({c: dict(p) for c, p in self.pools.items()}, dict(self.parents), dict(self.uses))
        first = self.clock + 1
        for key in keys:
            self.pools.setdefault(key.chain, {})[key.pool] = self.size(length)
            self.parents.setdefault(key.chain, key.parent)
            self.use(key.chain)
        while self.total() > self.limit:
            old = [chain for chain in self.leaves() if self.uses[chain] < first]
            if not old:
                self.pools, self.parents, self.uses = before
                return False
            del self.pools[min(old, key=self.uses.__getitem__)]
            self.forget()
        return True

    def forget(self) -> None:
        """Forget the parents of chains that neither are held nor have children that are known."""
        while gone := set(self.parents) - set(self.pools) - set(self.parents.values()):
            for chain in gone:
                del self.parents[chain]

    def delete(self, key: PageKey) -> None:
        pools = self.pools.get(key.chain, {})
        pools.pop(key.pool, None)
        if not pools:
            self.pools.pop(key.chain, None)
            self.forget()

    def names(self) -> set[str]:
        return {f"{chain}.{pool}" for chain, pools in self.pools.items() for pool in pools}
