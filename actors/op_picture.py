"""A picture of the tree: its most recently used part, read off and never changed.

It asks nobody. The records that components keep on nodes are read here all the same, as an audit
reads them: no operation is under way while this one runs, and it does not wait in between, so
nobody writes them meanwhile.
"""

from __future__ import annotations

import heapq
from typing import Final

from radixtide.actors.calls import Picture
from radixtide.actors.state import State
from radixtide.components.picture import NodePicture, TreePicture
from radixtide.tree.node import BACKING, IN_STORAGE, LOADING, QUEUED, STORING, Node
from radixtide.tree.radix_tree import RadixTree

_MOVES: Final = ((QUEUED, "queued"), (BACKING, "backup"), (LOADING, "load"), (STORING, "store"))
_WORDS: Final = tuple(
    tuple(word for bit, word in _MOVES if job & bit)
    for job in range(2 * max(bit for bit, _ in _MOVES))
)
"""The words of each value of ``Node.job``; what comes above them is no move."""

_MANY: Final = 8
"""So much more than a push costs it to make a heap anew, for each entry."""


def picture(state: State, p: Picture) -> TreePicture:
    """Return at most `nodes_max` nodes, the most recently used, with the path to each."""
    tree = state.tree
    tiers = state.tiers
    return TreePicture(
        components=state.names,
        page_size=state.page_size,
        generation=tree.generation,
        clock=tree.clock,
        pinned=state.pins.units,
        nodes_total=len(tree),
        branches=len(tree.root.children),
        nodes=tuple(map(_shown, _recent(tree, p.nodes_max))),
        moving={} if tiers is None else dict(tiers.jobs.units),
    )


def _recent(tree: RadixTree, most: int) -> list[Node]:
    """Return at most `most` nodes, parents first; where there are more, the latest touched.

    No parent has a lower touch number than its child, so the next one is always a child of those
    taken. O(n log n), and the children of those taken.
    """
    if len(tree) <= most:
        return list(tree)
    taken: list[Node] = []
    above = tree.root
    # By touch, the latest first; of one touch by id, so that it is the same one every time.
    border: list[tuple[int, int, Node]] = []
    while left := most - len(taken):
        children = above.children.values()
        least = 0
        if len(children) > left:
            # Only the latest have a chance; to sort numbers costs least.
            least = sorted([child.touch for child in children])[-left]
        below = [(-child.touch, child.id, child) for child in children if child.touch >= least]
        if len(below) * _MANY > len(border):
            border += below
            heapq.heapify(border)
        else:
            for one in below:
                heapq.heappush(border, one)
        above = heapq.heappop(border)[2]
        taken.append(above)
    return taken


def _shown(node: Node) -> NodePicture:
    parent = node.parent
    assert parent is not None
    device: tuple[int, ...] = ()
    host: tuple[int, ...] = ()
    locks: tuple[int, ...] = ()
    for data in node.component_data:
        # Added up one by one: most caches have one component, and then this costs a third.
        value, below = data.value, data.host_value
        device += (0 if value is None else len(value),)
        host += (0 if below is None else len(below),)
        locks += (data.lock_ref,)
    return NodePicture(
        node.id,
        0 if parent.parent is None else parent.id,
        parent.end,
        node.end,
        len(node.children),
        node.touch,
        node.hits,
        device,
        host,
        locks,
        node.pins > 0,
        node.tiers & IN_STORAGE > 0,
        _WORDS[node.job % len(_WORDS)],
    )
