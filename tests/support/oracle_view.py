"""What is on the nodes of a real tree, as plain values: read for comparison, never as a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixtide import UnifiedRadixCache
from radixtide.tree.node import Node
from support.oracle import FULL, MAMBA, SWA, Name, Namespace, Tokens


@dataclass(frozen=True, slots=True)
class Seen:
    """One node: ``name`` is that of its last page; ``full`` and ``swa`` are numbers of pages.

    ``locks``: the count on each component's record. ``children``: how many nodes are below.
    """

    id: int
    name: Name
    start: int
    end: int
    full: tuple[int, ...]
    swa: tuple[int, ...] | None
    state: int | None
    locks: dict[str, int]
    children: int


def pages_of(slots: npt.NDArray[np.int32] | npt.NDArray[np.int64], page: int) -> tuple[int, ...]:
    """Return the pages that `slots` are, which must be whole and in order."""
    numbers = slots[::page].astype(np.int64) // page
    whole = (numbers[:, None] * page + np.arange(page)).ravel()
    assert np.array_equal(slots, whole), f"not whole pages of {page}: {slots.tolist()}"
    return tuple(numbers.tolist())


def slots_of(pages: Iterable[int], page: int) -> list[int]:
    """Return the slots of `pages`, in order."""
    return [number * page + at for number in pages for at in range(page)]


def look(cache: UnifiedRadixCache, namespaces: Mapping[bytes, Namespace]) -> list[Seen]:
    """Return every node of the tree, parents first. `namespaces`: by the cache's own bytes."""
    tree = cache._tree
    index = {component.name: at for at, component in enumerate(cache._components)}
    page = cache.page_size
    found: list[Seen] = []
    stack: list[tuple[Node, Namespace, Tokens]] = [
        (node, namespaces[node.edge[: len(node.edge) - tree.edge_bytes]], ())
        for node in tree.root.children.values()
    ]
    while stack:
        node, namespace, above = stack.pop()
        piece = np.frombuffer(node.piece, dtype=np.int64).tolist()
        tokens = (*above[: node.start], *piece)
        full = node.component_data[0].value
        assert full is not None, f"{node} has no Full data"
        swa = node.component_data[index[SWA]].value if SWA in index else None
        state = node.component_data[index[MAMBA]].value if MAMBA in index else None
        assert state is None or len(state) == 1, f"{node} has states {state}"
        found.append(
            Seen(
                node.id,
                (namespace, tokens),
                node.start,
                node.end,
                pages_of(full, page),
                None if swa is None else pages_of(swa, page),
                None if state is None else int(state[0]),
                {name: node.component_data[at].lock_ref for name, at in index.items()},
                len(node.children),
            )
        )
        assert len(found[-1].full) * page == node.length, f"{node} has {len(full)} slots"
        assert swa is None or len(swa) == node.length, f"{node} has {len(swa)} SWA slots"
        stack.extend((child, namespace, tokens) for child in node.children.values())
    return found


def by_page(
    nodes: Iterable[Seen], page: int, lookahead: int
) -> dict[Name, tuple[int, int | None, int | None]]:
    """Return Full page, SWA page and state of every cached page."""
    found: dict[Name, tuple[int, int | None, int | None]] = {}
    for node in nodes:
        namespace, tokens = node.name
        for at, number in enumerate(node.full):
            end = node.start + (at + 1) * page
            found[namespace, tokens[: end + lookahead]] = (
                number,
                None if node.swa is None else node.swa[at],
                node.state if end == node.end else None,
            )
    return found


def protection_faults(nodes: Iterable[Seen]) -> list[str]:
    """Return what is wrong with the counts on the nodes, taken by themselves.

    No count is negative; what is protected in Mamba is so in SWA, and what is in SWA is in Full,
    where both have data.
    """
    faults = []
    for node in nodes:
        data = {FULL: True, SWA: node.swa is not None, MAMBA: node.state is not None}
        locks = node.locks
        faults += [f"{name} counts {n} on {node}" for name, n in locks.items() if n < 0]
        order = [name for name in (MAMBA, SWA, FULL) if name in locks]
        for at, inner in enumerate(order):
            for outer in order[at + 1 :]:
                both = data[inner] and data[outer]
                if both and locks[inner] > 0 and not locks[outer] > 0:
                    faults.append(f"protected in {inner}, not in {outer}: {node}")
    return faults
