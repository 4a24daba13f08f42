"""Looks of the oracle at a cache past its mailboxes: never at what the cache says of itself alone.

Each reads between two turns of the loop and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from radixtide.actors.inspection import crashes
from radixtide.actors.life import CacheLife
from radixtide.actors.storage_jobs import StorageJobs
from radixtide.components.api import LockReceipt, NodeHandle, Slots
from radixtide.simulation.oracle_content import MAMBA, SWA, Content, MarkArray, marks_of
from radixtide.tiers.page_hash import namespace_seed, page_hashes
from radixtide.tiers.slots import EMPTY, FIRST_HOLDER, TREE
from radixtide.tiers.storage.base import PageKey
from radixtide.tree.key import TOKEN_BYTES, RadixKey, namespace_parts
from radixtide.tree.node import HASH_BYTES, ON_DEVICE, Node


class Place(NamedTuple):
    """A node, and the key that leads to its end."""

    node: Node
    namespace: bytes
    raw: bytes


def places(cache: CacheLife) -> Iterator[Place]:
    """Yield every node, parents first."""
    tree = cache._tree  # a look from outside is what this is for
    stack = [
        Place(node, node.edge[: len(node.edge) - tree.edge_bytes], node.piece)
        for node in tree.root.children.values()
    ]
    while stack:
        place = stack.pop()
        yield place
        for child in place.node.children.values():
            raw = place.raw[: child.start * TOKEN_BYTES] + child.piece
            stack.append(Place(child, place.namespace, raw))


def current(cache: CacheLife, handle: NodeHandle) -> Node | None:
    """Return the node of a handle while the handle is good, else None."""
    tree = cache._tree  # as above
    node = tree.nodes.get(handle.id)
    if node is None or handle.generation != tree.generation or handle.epoch != node.epoch:
        return None
    return node if node.tiers & ON_DEVICE else None


def lives(cache: CacheLife, receipt: LockReceipt) -> bool:
    """Return whether the cache still knows a lock."""
    return receipt.id in cache._state.receipts  # as above


def path_slots(node: Node) -> Slots | None:
    """Return the Full slots from the root to the end of `node`; None: not all are there."""
    found: list[Slots] = []
    at: Node | None = node
    while at is not None and at.parent is not None:
        value = at.primary.value
        if value is None:
            return None
        found.append(value.astype(np.int64))
        at = at.parent
    found.reverse()
    return np.concatenate(found) if found else EMPTY.copy()


def window_values(cache: CacheLife, node: Node) -> Iterator[tuple[int, Slots]]:
    """Yield, from `node` upward, where each node with window slots begins, and these slots."""
    parts = [part for part in cache._components if part.name == SWA]  # as above
    at: Node | None = node
    while at is not None and at.parent is not None:
        for part in parts:
            value = part.data(at).value
            if value is not None:
                yield at.start, value.astype(np.int64)
        at = at.parent


def state_slot(cache: CacheLife, node: Node) -> int | None:
    """Return the slot of the state at the end of `node`, None without one."""
    for part in cache._components:  # as above
        if part.name == MAMBA:
            value = part.data(node).value
            return None if value is None else int(value[0])
    return None


class Losses:
    """Counts what is dropped from the device of one cache, from its making on.

    The cache's counters tell of whole nodes only, so evictions are counted where they are made.
    """

    def __init__(self, cache: CacheLife) -> None:
        self._cache = cache
        self._evictions = 0
        for part in cache._components:  # as above
            evict = part.evict_nodes

            def counted(nodes: Sequence[Node], evict: Any = evict) -> int:
                self._evictions += 1
                freed: int = evict(nodes)
                return freed

            part.evict_nodes = counted  # type: ignore[method-assign]  # of this one object

    def now(self) -> tuple[int, ...]:
        """Return numbers that change whenever something is dropped. Cost O(actors)."""
        cache = self._cache
        system = cache._system  # as above
        restarts = 0 if system is None else sum(cell.restarts for cell in system._cells)
        capped = sum(sum(part.counters().values()) for part in cache._components)
        state = cache._state
        return (
            state.tree.generation,
            self._evictions + state.counters.repairs,
            restarts,
            capped,
        )


class Watch:
    """Notes what goes wrong inside a cache between two looks at it, from its making on.

    That an actor crashed and nobody had injected it: a crash is lived with, so it shows here only.
    And that pages of the host were written, or read for a storage, which belonged to nobody then.
    """

    def __init__(self, cache: CacheLife) -> None:
        self._cache = cache
        self._pages: list[str] = []
        for part in cache._components:
            pool = cache.host_pools.get(part.name)
            if pool is not None:
                self._watch_pool(part, pool)

    @property
    def found(self) -> list[str]:
        """What has gone wrong so far, in words."""
        own = crashes(self._cache).items()
        return [
            *(f"actor {name} crashed by itself: {error!r}" for name, error in own),
            *self._pages,
        ]

    def _watch_pool(self, part: Any, pool: Any) -> None:
        read, write = pool.read_pages, pool.write_pages

        def look(what: str, pages: Any, least: int) -> None:
            # The books are others after a reset.
            owners = part.host_allocator.owners()[pages]
            if (owners < least).any():
                free = pages[owners < least].tolist()
                self._pages.append(f"host pages {free} of {part.name} were {what}, for nobody")

        def read_pages(pages: Any, out: Any) -> None:
            look("read", pages, TREE)
            read(pages, out)

        def write_pages(pages: Any, data: Any) -> None:
            look("written", pages, FIRST_HOLDER)
            write(pages, data)

        pool.read_pages, pool.write_pages = read_pages, write_pages


def degraded(cache: CacheLife) -> bool:
    """Return whether an actor of the cache is down for good."""
    system = cache._system  # as above
    return system is None or any(cell.degraded or not cell.open for cell in system._cells)


def is_stored_only(cache: CacheLife, key: RadixKey) -> bool:
    """Return whether a storage has more of `key` than the cache, with all that its end needs.

    Cost: a hash of the key. It serves to choose what is worth a fetch, and judges nothing.
    """
    tiers = cache._state.tiers  # as above
    jobs: StorageJobs | None = tiers.store if tiers is not None and tiers.storing else None
    if jobs is None:
        return False
    page = cache.page_size
    skip = cache._tree.walk(key).matched // page
    seed = namespace_seed(key.extra_key, key.cache_salt)
    whole = key.units // page * HASH_BYTES
    names = jobs._names(page_hashes(key.raw, page, key.is_bigram, seed)[:whole], seed)[skip:]
    store: Any = jobs.backend.backend
    there = {
        pool.name: [PageKey(chain, None, pool.name).name in store.disk.frames for chain, _ in names]
        for pool in jobs.pools
    }
    first = [*there[jobs.pools[0].name], False].index(False)
    return jobs._longest(skip + first, skip, there) > skip


class Names:
    """Names of pages in storage: one for each content, and one content for each.

    What is in storage goes by the chain hash of its page; so two prompts, or two tenants, with one
    name would get each other's pages, and a page with two names would be missed under one.
    """

    def __init__(self) -> None:
        self._content: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}

    def look(self, cache: CacheLife) -> list[str]:
        """Return which nodes have a name that does not fit. O(pages with a name)."""
        page = cache.page_size
        for place in places(cache):
            node = place.node
            if not node.hashes:
                continue
            marks = marks_of(place.raw, namespace_parts(place.namespace), cache.config.bigram)
            ends = marks[node.start + page - 1 : node.end : page].tolist()
            for at, mark in enumerate(ends):
                name = node.hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES]
                if self._content.setdefault(name, mark) != mark:
                    return [f"{node}: page {at} has the name in storage of another content"]
                if self._names.setdefault(mark, name) != name:
                    return [f"{node}: page {at} has another name in storage than before"]
        return []


def deep(cache: CacheLife, content: Content, pending: MarkArray) -> list[str]:
    """Return what is wrong in the bytes of any node, on the device and on the host.

    `pending`: marks of what was inserted before it was written, which is not looked at. Cost
    O(bytes of all nodes); only while nobody edits.
    """
    bigram = cache.config.bigram
    device: dict[str, tuple[list[Any], list[Any], list[Node]]] = {}
    wrong: list[str] = []
    for place in places(cache):
        node = place.node
        marks = marks_of(place.raw, namespace_parts(place.namespace), bigram)
        for part in cache._components:  # as above
            data = part.data(node)
            if data.value is None and data.host_value is None:
                continue
            wanted = marks[node.end - 1 : node.end]
            if part.name != MAMBA:
                wanted = marks[node.start : node.end]
            if part.name not in content.pools:
                continue
            if len(pending) and np.isin(wanted, pending).any():
                continue
            if data.value is not None:
                slots, marks_there, nodes = device.setdefault(part.name, ([], [], []))
                slots.append(data.value)
                marks_there.append(wanted)
                nodes += [node] * len(wanted)
                if len(data.value) != len(wanted):
                    wrong.append(
                        f"{node} has {len(data.value)} slots of {part.name} for {len(wanted)}"
                    )
                    return wrong
            if data.host_value is not None:
                wrong += _host(cache, content, part.name, node, data, wanted)
    for name, (slots, marks_there, nodes) in device.items():
        bad = content.pools[name].wrong(
            np.concatenate(slots).astype(np.int64), np.concatenate(marks_there)
        )
        if bad:
            wrong.append(f"{nodes[bad[0]]}: wrong bytes of {name} on the device")
    return wrong


def _host(
    cache: CacheLife, content: Content, name: str, node: Node, data: Any, wanted: MarkArray
) -> list[str]:
    pool = cache.host_pools.get(name)
    if pool is None:
        return []
    page = pool.page_size
    pages = data.host_value[::page].astype(np.int64) // page
    if len(pages) * page != len(wanted):
        return [f"{node} has {len(pages)} pages of {name} on the host for {len(wanted)} units"]
    found = np.empty((len(pages), pool.page_bytes), dtype=np.uint8)
    pool.read_pages(pages, found)
    good = (found == content.pools[name].page_bytes(wanted, page)).all(axis=1)
    if good.all():
        return []
    return [f"{node}: wrong bytes of {name} on the host, pages {np.flatnonzero(~good).tolist()}"]


__all__ = (
    "Losses",
    "Names",
    "Place",
    "Watch",
    "current",
    "deep",
    "degraded",
    "lives",
    "path_slots",
    "places",
    "state_slot",
    "window_values",
)
