"""A picture of the tree: its most recently used part, read off and never changed.

The structure is the coordinator's own; what there is on each node its components say, each in one
answer for all nodes.
"""

from __future__ import annotations

import heapq
from typing import Final

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import Picture
from radixtide.actors.messages import Show
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


def picture(state: State, p: Picture) -> Conversation:
    """Return at most `nodes_max` nodes, the most recently used, with the path to each."""
    tree = state.tree
    nodes = _recent(tree, p.nodes_max)
    answers = yield state.all(Show(nodes))
    tiers = state.tiers
    return TreePicture(
        components=state.names,
        page_size=state.page_size,
        generation=tree.generation,
        clock=tree.clock,
        pinned=state.pins.units,
        nodes_total=len(tree),
        branches=len(tree.root.children),
        nodes=tuple(map(_shown, nodes, zip(*answers, strict=True))),
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


def _shown(node: Node, answers: tuple[tuple[int, int, int], ...]) -> NodePicture:
    parent = node.parent
    assert parent is not None
    device, host, locks = zip(*answers, strict=True)
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
