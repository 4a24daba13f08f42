"""The transfers of a bench of components: backups, loads, fetches, each begun and ended apart."""

from __future__ import annotations

import numpy as np

from radixtide.components.api import Slots
from radixtide.components.outcomes import Shortage
from radixtide.tree import Node
from radixtide.tree.node import IN_STORAGE, ON_DEVICE, ON_HOST
from radixtide.tree.radix_tree import Walk
from support.host_bench import HostBench, Transfer


class HostWorld(HostBench):
    """A bench with transfers. Copies happen at their end, from where the bytes are then."""

    # -- backup ---------------------------------------------------------------------

    def begin_backup(self, node: Node) -> int | None:
        """Begin to back up `node` and what above it has no copy; None: no room, or no need."""
        chain: list[Node] = []
        at = node
        while at.parent is not None and not at.tiers & ON_HOST:
            if self.is_busy(at) or not at.tiers & ON_DEVICE:
                return None
            chain.insert(0, at)
            at = at.parent
        if not chain and node.tiers & ON_DEVICE and not self.is_busy(node):
            # Other components may have got something since.
            chain = [node] if any(part.backup_need([node]) for part in self.parts) else []
            at = node.parent or at
            self.seen["backup of what came later"] += len(chain)
        if not chain:
            return None
        anchor = [at] if at.parent is not None else []
        spare = (*anchor, *chain)
        for part in self.parts:
            sizes = part.host_sizes()
            assert sizes is not None
            need = part.backup_need(chain)
            if need > sizes.free:
                self.evict_host(part, need - sizes.free, spare)
        sizes = self.full.host_sizes()
        assert sizes is not None
        if self.full.backup_need(chain) > sizes.free:
            self.seen["no room"] += 1
            return None
        self.number += 1
        moving = [part.begin_backup(chain, self.number) for part in self.parts]
        for part in self.parts:
            part.pin_host(anchor)
        self.jobs[self.number] = Transfer("backup", chain, anchor, moving)
        return self.number

    def is_busy(self, node: Node) -> bool:
        """Return whether a job copies `node`."""
        return any(node in job.nodes for job in self.jobs.values())

    def end_backup(self, number: int, ok: bool = True) -> None:
        """End a backup."""
        job = self.jobs.pop(number)
        self.seen[job.kind if ok else f"{job.kind} failed"] += 1
        for at, (part, moving) in enumerate(zip(self.parts, job.moving, strict=True)):
            if not ok:
                part.abort_backup(job.nodes)
                continue
            self.host[at][moving.host] = self.device[at][moving.device]
            page = part.allocator.page_size
            digests = self.host[at][moving.host][::page].astype(np.uint64)
            part.commit_backup(job.nodes, digests)
        for part in self.parts:
            part.unpin_host(job.pinned)
        if ok:
            for node in job.nodes:
                node.tiers |= ON_HOST

    # -- load -----------------------------------------------------------------------

    def usable(self, walk: Walk, device_only: bool) -> int:
        """Return how many steps of a walk's path may be used."""
        votes: set[int] = set(range(1, len(walk.path) + 1))
        for part in self.parts:
            votes &= set(part.validate_path(walk.path, None, 0, device_only))
        if device_only:
            votes = {at for at in votes if walk.path[at - 1].tiers & ON_DEVICE}
        return max(votes, default=0)

    def begin_load(self, tokens: list[int]) -> int | None:
        """Begin to load what the host has of a sequence; None: nothing to load, or no room."""
        walk = self.walk(tokens)
        usable, first = self.usable(walk, False), self.usable(walk, True)
        if usable <= first:
            return None
        node = walk.path[usable - 1]
        self.split(*self.borders(node))
        path = self.path(node)
        first = sum(bool(at.tiers & ON_DEVICE) for at in path)
        records = [part.acquire_component_lock(node) for part in self.parts]

        def give_up() -> None:
            for part, record in zip(self.parts, records, strict=True):
                part.release_component_lock(node, record)

        needs = [part.load_need(path, first) for part in self.parts]
        wanted = {one for need in needs for one in need.nodes}
        nodes = [one for one in path if one in wanted]
        if not nodes or any(need.shared for need in needs):
            give_up()
            return None
        for part in self.parts:
            part.pin_host(nodes)
        for part, need in zip(self.parts, needs, strict=True):
            if part.sizes().free < need.slots:
                self.evict(part, need.slots - part.sizes().free)
        needs = [part.load_need(path, first) for part in self.parts]
        if any(
            part.sizes().free < need.slots or not set(need.nodes) <= set(nodes)
            for part, need in zip(self.parts, needs, strict=True)
        ):
            self.seen["no room"] += 1
            for part in self.parts:
                part.unpin_host(nodes)
            give_up()
            return None
        self.number += 1
        moving = [self.full.begin_load(needs[0].nodes, self.number)]
        carriers: dict[int, Slots] = {}
        begin = 0
        for one in needs[0].nodes:
            carriers[one.id] = moving[0].device[begin : begin + one.length]
            begin += one.length
        moving += [
            part.begin_load(need.nodes, self.number, carriers)
            for part, need in zip(self.parts[1:], needs[1:], strict=True)
        ]
        self.jobs[self.number] = Transfer("load", nodes, list(nodes), moving, (node, records))
        return self.number

    def end_load(self, number: int, ok: bool = True) -> None:
        """End a load."""
        job = self.jobs.pop(number)
        self.seen[job.kind if ok else f"{job.kind} failed"] += 1
        for at, (part, moving) in enumerate(zip(self.parts, job.moving, strict=True)):
            if not ok:
                part.abort_load(job.nodes, number)
                continue
            self.device[at][moving.device] = self.host[at][moving.host]
            part.commit_load(job.nodes, number)
        if ok:
            for node in job.nodes:
                node.tiers |= ON_DEVICE
        assert job.lock is not None
        for part, record in zip(self.parts, job.lock[1], strict=True):
            part.unpin_host(job.pinned)
            part.release_component_lock(job.lock[0], record)

    # -- storage ----------------------------------------------------------------------

    def store(self, nodes: list[Node], stored: bool = True) -> None:
        """Note that nodes are in storage, or no longer."""
        for part in self.parts:
            part.note_stored(nodes, stored)
        for node in nodes:
            node.tiers = node.tiers | IN_STORAGE if stored else node.tiers & ~IN_STORAGE

    def fetch(self, tokens: list[int], swa: int = 0, state: bool = False) -> list[Node] | None:
        """Bring the rest of a sequence to the host; None: no room, or no place to hang it on."""
        walk = self.walk(tokens)
        fresh = walk.limit - walk.matched
        last = walk.last
        if (
            fresh <= 0
            or walk.inside is not None
            or not (last.parent is None or last.tiers & ON_HOST)
        ):
            return None
        wanted = {"full": fresh, "swa": min(swa, fresh), "mamba": int(state)}
        self.number += 1
        taken: list[Slots] = []
        for part in self.parts:
            slots = part.reserve_host(wanted[part.name], self.number)
            if isinstance(slots, Shortage):
                self.evict_host(part, slots.wanted - slots.sizes.free, tuple(walk.path))
                slots = part.reserve_host(wanted[part.name], self.number)
            if isinstance(slots, Shortage):
                for other, theirs in zip(self.parts, taken, strict=False):
                    other.release_host(theirs)
                return None
            taken.append(slots)
        ends = [walk.limit - wanted["swa"]] if 0 < wanted["swa"] < fresh else []
        nodes: list[Node] = []
        begin = walk.matched
        for end in [*ends, walk.limit]:
            last = self.tree.add_leaf(last, walk, begin, end)
            last.tiers = ON_HOST | IN_STORAGE
            nodes.append(last)
            begin = end
        self.seen["fetch"] += 1
        names = self.names(tokens)
        for at, (part, slots) in enumerate(zip(self.parts, taken, strict=True)):
            if len(slots):
                self.host[at][slots] = names[: walk.limit][-len(slots) :]
                part.commit_fetch(nodes, slots)
        return nodes
