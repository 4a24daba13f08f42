"""Components with a host tier on a tree of their own, and the steps of a coordinator.

Hooks are called as the components' actors would. The bench writes the structure, the bits that say
where data is, and the books of the jobs; and it keeps the **bytes**: what stands in each slot of
each pool, as the name of the unit that was written there. So a slot that is named wrongly, freed
too early or filled twice shows when the names are read again.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from radixtide import RadixKey, Violation
from radixtide.components.api import Slots
from radixtide.components.full import FullComponent
from radixtide.components.host_tier import HostTier
from radixtide.components.insertion import Insertion, InsertPart
from radixtide.components.outcomes import JobPins, Moving, Reserved
from radixtide.components.registry import make_components
from radixtide.configs.schema import HostConfig, HostPoolConfig
from radixtide.tiers.slots import ANONYMOUS, FIRST_HOLDER
from radixtide.tree import Node
from radixtide.tree.node import ON_DEVICE, ON_HOST
from radixtide.tree.radix_tree import Walk
from support.caches import make_config
from support.hybrids import hybrid

Names = npt.NDArray[np.int64]
"""What stands in each slot of a pool: the name of a unit, 0 for nothing."""


class Transfer(msgspec.Struct, eq=False):
    """One job: see ``actors/jobs.py``. ``lock``: node that a load keeps on the device."""

    kind: str
    nodes: list[Node]
    pinned: list[Node]
    moving: list[Moving]
    lock: tuple[Node, list[Any]] | None = None


class HostBench:
    """Components of one set with a host tier; every step leaves them to be audited."""

    def __init__(
        self,
        components: tuple[str, ...] = ("full",),
        *,
        page_size: int = 4,
        host: dict[str, int] | None = None,
        **overrides: Any,
    ) -> None:
        sizes = {name: HostPoolConfig(size=size) for name, size in (host or {}).items()}
        overrides.setdefault("host", HostConfig(pools=sizes))
        config = make_config(**hybrid(components, page_size=page_size, **overrides))
        made, self.tree = make_components(config)
        self.parts: list[HostTier] = []
        for part in made:
            assert isinstance(part, HostTier)
            self.parts.append(part)
        full = made[0]
        assert isinstance(full, FullComponent)
        self.full: FullComponent = full
        self.page = config.page_size
        self.device: list[Names] = [np.zeros(one.allocator.size, np.int64) for one in made]
        self.host: list[Names] = [
            np.zeros(0 if one.host_allocator is None else one.host_allocator.size, np.int64)
            for one in made
        ]
        self.receipts: list[tuple[Node, list[Any]]] = []
        self.jobs: dict[int, Transfer] = {}
        self.number = FIRST_HOLDER + 1000
        # What happened how often, so that a walk can show that it went through it.
        self.seen: Counter[str] = Counter()

    def part(self, name: str) -> HostTier:
        """Return a component by its name."""
        return next(part for part in self.parts if part.name == name)

    # -- structure ------------------------------------------------------------------

    def walk(self, tokens: list[int]) -> Walk:
        """Follow tokens down the tree."""
        return self.tree.walk(RadixKey(tokens))

    def path(self, node: Node) -> list[Node]:
        """Return the nodes from below the root down to `node`."""
        path: list[Node] = []
        at = node
        while at.parent is not None:
            path.insert(0, at)
            at = at.parent
        return path

    def cut(self, node: Node, units: int) -> tuple[Node, Node]:
        """Split in the structure, and let the prefix join the jobs."""
        prefix = self.tree.split(node, units)
        for job in self.jobs.values():
            for nodes in (job.nodes, job.pinned):
                if node in nodes:
                    self.seen["split under way"] += 1
                    nodes.insert(nodes.index(node), prefix)
        return prefix, node

    def split(self, *splits: tuple[Node, Node]) -> None:
        """Let the components follow splits, in their order."""
        for part in self.parts:
            for prefix, suffix in splits:
                part.redistribute_on_node_split(prefix, suffix)

    def border(self, node: Node, depth: int) -> list[tuple[Node, Node]]:
        """Make `depth` a border above `node`; return the split that it took, if any."""
        at = node
        while at.start > depth and at.parent is not None:
            at = at.parent
        return [self.cut(at, depth - at.start)] if at.start < depth < at.end else []

    def borders(self, node: Node) -> list[tuple[Node, Node]]:
        """Make the borders that a lock on `node` needs."""
        found: list[tuple[Node, Node]] = []
        for part in self.parts:
            if part.reach is not None:
                found += self.border(node, node.end - part.reach)
        return found

    def touch(self, nodes: list[Node]) -> None:
        """Note the use of a path."""
        self.tree.clock += 1
        self.tree.root.touch = self.tree.clock
        for node in nodes:
            node.touch = self.tree.clock

    # -- insert ---------------------------------------------------------------------

    def names(self, tokens: list[int]) -> Names:
        """Return what is written for each unit of a sequence: a name for its whole prefix."""
        names: list[int] = []
        name = 1
        for token in tokens:
            name = (name * 1_000_003 + token + 7) % (2**61 - 1)
            names.append(name)
        return np.array(names, dtype=np.int64)

    def names_of(self, node: Node) -> Names:
        """Return the names of a node's units."""
        raw = b"".join(at.piece for at in self.path(node))
        return self.names(np.frombuffer(raw, dtype=np.int64).tolist())[node.start :]

    def take(self, tokens: int, swa: int, state: bool) -> dict[str, Slots] | None:
        """Take slots for an insert, evicting what is needed; None: there are not so many."""
        wanted = {"full": tokens, "swa": swa, "mamba": int(state)}
        for part in self.parts:
            short = part.quote(wanted, ANONYMOUS)
            if short is not None:
                self.evict(part, short.wanted - short.sizes.free)
        if any(part.quote(wanted, ANONYMOUS) is not None for part in self.parts):
            return None
        reserved = self.full.reserve(tokens, ANONYMOUS)
        assert isinstance(reserved, Reserved)
        taken = {"full": reserved.slots}
        for part in self.parts[1:]:
            own = part.grant(wanted, ANONYMOUS, reserved)
            if own is not None:
                taken[part.name] = own
        return taken

    def insert(
        self, tokens: list[int], *, swa: int | None = None, state: bool = False, prev: int = 0
    ) -> list[InsertPart] | None:
        """Insert whole pages of tokens; the last `swa` of them have a window, None: all have.

        None: there was no room, or nothing could be inserted.
        """
        units = len(tokens) - len(tokens) % self.page
        has_state = state and len(self.parts) > 1 and self.parts[-1].name == "mamba"
        above = self.walk(tokens[:prev])
        assert above.matched == prev
        assert all(node.tiers & ON_DEVICE for node in above.path)
        self.lock(above.last)
        fresh = units - prev
        taken = self.take(fresh, fresh if swa is None else min(swa, fresh), has_state)
        self.unlock(len(self.receipts) - 1)
        if taken is None:
            return None
        names = self.names(tokens)
        self.device[0][taken["full"]] = names[prev:units]
        if "swa" in taken:
            pairs = taken["swa"]
            self.device[1][pairs[pairs >= 0]] = names[prev:units][pairs >= 0]
        if has_state:
            self.device[-1][taken["mamba"]] = names[units - 1]
        value = np.concatenate((self.full.path_slots(self.path(above.last)), taken["full"]))
        return self._insert(tokens, value, prev, taken if has_state else None)

    def _insert(
        self, tokens: list[int], value: Slots, prev: int, states: dict[str, Slots] | None
    ) -> list[InsertPart] | None:
        walk = self.walk(tokens)
        depth, was = self._settle(walk), walk.limit
        given = None if states is None else {"mamba": states["mamba"].item()}
        if walk.limit < len(value):
            self._release(value[max(walk.limit, prev) :])
            if given is not None:
                self.parts[-1].release(np.array([given["mamba"]]))
            given = None
        if not walk.limit or walk.limit <= prev:
            return None
        job = Insertion(
            walk, value, ANONYMOUS, prev, prev, 0, False, walk.matched, walk.start, given=given
        )
        job.device_matched = depth
        job.cut = walk.limit < was
        job.checked = [part.check_insert(job) for part in self.parts]
        splits: list[tuple[Node, Node]] = []
        if walk.inside is not None:
            splits.append(self.cut(walk.inside, walk.inside_units))
            walk.path.append(splits[0][0])
            walk.last = splits[0][0]
        cuts = sorted({cut for check in job.checked for cut in check.cuts})
        for cut in reversed(cuts):
            if cut < job.matched:
                splits += self.border(walk.last, cut)
        walk.path[:] = self.path(walk.last)
        self.touch(walk.path)
        node = walk.last
        leaves: list[Node] = []
        begin = job.matched
        for end in [cut for cut in cuts if job.matched < cut < job.end] + [job.end]:
            if begin < end:
                node = self.tree.add_leaf(node, walk, begin, end)
                leaves.append(node)
                begin = end
        job.node = node
        job.leaves = tuple(leaves)
        for one in walk.path:
            self.seen["revived"] += not one.tiers & ON_DEVICE
            one.tiers |= ON_DEVICE
        self.seen["insert"] += 1
        self.split(*splits)
        return [part.apply_insert(job) for part in self.parts]

    def _settle(self, walk: Walk) -> int:
        """Cut a walk before what is being loaded; return the depth that is on the device."""
        on_device = [node for node in walk.path if node.tiers & ON_DEVICE]
        depth = on_device[-1].end if on_device else 0
        inside = walk.inside
        if len(on_device) == len(walk.path) and (inside is None or inside.tiers & ON_DEVICE):
            return walk.matched
        for step, node in enumerate(walk.path):
            if not node.tiers & ON_DEVICE and self.is_loading(node):
                walk.cut(step)
                walk.limit = walk.matched
                return depth
        if inside is not None and not inside.tiers & ON_DEVICE and self.is_loading(inside):
            walk.cut(len(walk.path))
            walk.limit = walk.matched
        return depth

    def _release(self, slots: Slots) -> None:
        for part in self.parts[1:]:
            part.carrier_released(slots)
        self.full.release(slots)

    def is_loading(self, node: Node) -> bool:
        """Return whether a job loads the carrier's data of `node`."""
        link = node.primary.host_link
        return link is not None and link.loading is not None

    # -- lock, evict ----------------------------------------------------------------

    def lock(self, node: Node) -> None:
        """Lock a node; the root too."""
        self.split(*self.borders(node))
        self.seen["host-only locked"] += bool(node.parent and not node.tiers & ON_DEVICE)
        records = [part.acquire_component_lock(node) for part in self.parts]
        self.receipts.append((node, records))

    def unlock(self, at: int) -> None:
        """Undo one lock."""
        node, records = self.receipts.pop(at)
        for part, record in zip(self.parts, records, strict=True):
            part.release_component_lock(node, record)

    def evict(self, part: HostTier, target: int) -> list[Node]:
        """Evict on the device, as a cascade does; return the victims."""
        victims = part.drive_eviction(target)
        leaves = victims
        if part is not self.full:
            flags = self.full.judge(victims)
            leaves = [node for node, leaf in zip(victims, flags, strict=True) if leaf]
        rank = part.eviction_priority(False)
        for other in self.parts:
            along = other is part or (
                other is not self.full and other.eviction_priority(False) <= rank
            )
            other.evict_nodes(victims if along else leaves)
        for node in leaves:
            node.tiers &= ~ON_DEVICE
            if node.tiers & ON_HOST:
                self.seen["demoted"] += 1
            else:
                self.tree.remove(node)
        return victims

    def evict_host(self, part: HostTier, target: int, spare: tuple[Node, ...] = ()) -> list[Node]:
        """Evict on the host; return the victims."""
        victims = part.drive_host_eviction(target, spare)
        rank = part.eviction_priority(False)
        self.seen["evicted on the host"] += len(victims)
        for other in self.parts:
            if (
                part is self.full
                or other is part
                or (other is not self.full and other.eviction_priority(False) <= rank)
            ):
                other.evict_host_nodes(victims)
        if part is self.full:
            for node in victims:
                node.tiers &= ~ON_HOST
                if not node.tiers & ON_DEVICE:
                    self.tree.remove(node)
        return victims

    # -- soundness ------------------------------------------------------------------

    def pins(self) -> JobPins:
        """Return the pins that the jobs make."""
        pins: JobPins = {}
        for job in self.jobs.values():
            for nodes, one in ((job.nodes, (job.kind == "backup", 0)), (job.pinned, (0, 1))):
                for node in nodes:
                    device, host = pins.get(node.id, (0, 0))
                    pins[node.id] = device + one[0], host + one[1]
        return {node_id: one for node_id, one in pins.items() if one != (0, 0)}

    def locked(self) -> dict[int, int]:
        """Return the locks on each node."""
        counts: dict[int, int] = {}
        locks = [job.lock[0] for job in self.jobs.values() if job.lock is not None]
        for node in [*(node for node, _ in self.receipts), *locks]:
            if node.parent is not None:
                counts[node.id] = counts.get(node.id, 0) + 1
        return counts

    def audit(self) -> list[Violation]:
        """Recount everything."""
        locked, pins = self.locked(), self.pins()
        found: list[Violation] = []
        for part in self.parts:
            found += part.audit(locked, {}, pins)
        census = self.full.census()
        for part in self.parts[1:]:
            found += part.audit_against(census)
        return found

    def rebuild(self) -> list[Node]:
        """Repair all components, as after a crash; return the nodes that have no data left."""
        locked, pins = self.locked(), self.pins()
        hollow = self.full.rebuild(locked, set(), None, pins)
        census = self.full.census()
        for part in self.parts[1:]:
            part.rebuild(locked, set(), census, pins)
        return hollow

    def check(self) -> None:
        """Assert that all is sound, and that every slot has what its node says."""
        assert self.audit() == []
        for node in self.tree:
            names = self.names_of(node)
            for at, part in enumerate(self.parts):
                data = part.data(node)
                expected = names[-1:] if part.name == "mamba" else names
                if data.value is not None:
                    assert np.array_equal(self.device[at][data.value], expected), (part.name, node)
                if data.host_value is not None:
                    assert np.array_equal(self.host[at][data.host_value], expected), node
                    link = data.host_link
                    if link is not None and link.digests is not None:
                        page = part.allocator.page_size
                        assert np.array_equal(link.digests, expected[::page].astype(np.uint64))
