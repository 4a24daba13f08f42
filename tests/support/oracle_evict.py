"""What an eviction took, read from the tree, and whether it was allowed to.

Which victims are chosen is the cache's affair; what may be a victim, and what must go along with
it, is not (the cascade): a leaf goes whole, an inner node loses SWA together with its state, or the
state alone; a node whose Full data is locked counts as an inner one; what is locked stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from support.oracle import FULL, MAMBA, SWA, Name, Oracle, Page
from support.oracle_view import Seen, by_page


@dataclass(slots=True)
class Losses:
    """Pages that are gone, and those that are still there but lost their SWA or their state.

    ``freed``, ``most``: slots that went in all, and with one node, per component.
    ``nodes``: gone pages by node. ``tombstones``: pages without SWA by node, and the node's last
    page. ``inner``: last pages of nodes that had a child before, or have their Full data locked.
    """

    page: int
    gone: list[Page] = field(default_factory=list)
    nodes: list[list[Page]] = field(default_factory=list)
    tombstones: list[tuple[Page, list[Page]]] = field(default_factory=list)
    states: list[Page] = field(default_factory=list)
    inner: set[Name] = field(default_factory=set)

    freed: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    @property
    def swa(self) -> list[Page]:
        """Pages that are still there and lost their SWA."""
        return [page for _, pages in self.tombstones for page in pages]

    def ends(self, component: str) -> set[Name]:
        """Return the last pages of the nodes that lost data of `component`."""
        if component == MAMBA:
            return {one.name for one in [*self.gone, *self.states] if one.state is not None}
        gone = {pages[-1].name for pages in self.nodes if pages[-1].swa is not None}
        return gone | {last.name for last, _ in self.tombstones}

    def count(self) -> None:
        """Note what was freed in all, and the most of one node, per component in slots."""
        nodes = [*self.nodes, *(pages for _, pages in self.tombstones)]
        swa = [sum(one.swa is not None for one in pages) * self.page for pages in nodes]
        states = sum(one.state is not None for one in [*self.gone, *self.states])
        self.freed = {FULL: len(self.gone) * self.page, SWA: sum(swa), MAMBA: states}
        self.most = {
            FULL: max((len(pages) * self.page for pages in self.nodes), default=0),
            SWA: max(swa, default=0),
            MAMBA: min(states, 1),
        }

    def faults(self, oracle: Oracle, wanted: set[str]) -> list[str]:
        """Return what was not allowed. `wanted`: pools in which room was asked for."""
        found = [f"locked, yet gone: {shown(one)}" for one in self.gone if any(one.locks.values())]
        for pages in self.nodes:
            reasons = {FULL}
            if any(one.swa is not None for one in pages):
                reasons.add(SWA)
            if any(one.state is not None for one in pages):
                reasons.add(MAMBA)
            if not reasons & wanted:
                found.append(f"gone for no reason ({wanted} wanted): {shown(pages[-1])}")
        for last, pages in self.tombstones:
            if any(one.locks[SWA] for one in pages):
                found.append(f"window locked, yet without SWA: {shown(last)}")
            if SWA not in wanted:
                found.append(f"lost its SWA for no reason ({wanted} wanted): {shown(last)}")
            if last.name not in self.inner:
                found.append(f"a leaf lost its SWA and stayed: {shown(last)}")
            if last.state is not None and last not in self.states:
                found.append(f"lost its SWA and kept its state: {shown(last)}")
        without_swa = {last.name for last, _ in self.tombstones}
        for one in self.states:
            if one.locks[MAMBA]:
                found.append(f"state locked, yet gone: {shown(one)}")
            if MAMBA not in wanted and one.name not in without_swa:
                found.append(f"lost its state for no reason ({wanted} wanted): {shown(one)}")
            if one.name not in self.inner:
                found.append(f"a leaf lost its state and stayed: {shown(one)}")
        return found


def shown(page: Page) -> str:
    """Return a page in a few words."""
    return f"{page.name} full {page.full} swa {page.swa} state {page.state} locks {page.locks}"


def find_losses(oracle: Oracle, nodes: list[Seen], before: list[Seen]) -> Losses:
    """Compare what the oracle knows with `nodes`. `before`: the nodes before the call."""
    there = by_page(nodes, oracle.page, oracle.lookahead)
    losses = Losses(oracle.page)
    gone = {name for name in oracle.pages if name not in there}
    losses.gone = [oracle.pages[name] for name in gone]
    for node in before:
        lost = [page for page in pages_of_node(oracle, node) if page.name in gone]
        if lost:
            losses.nodes.append(lost)
            gone -= {page.name for page in lost}
    losses.nodes += [[oracle.pages[name]] for name in gone]
    for node in nodes:
        pages = pages_of_node(oracle, node)
        if not pages or pages[-1].name != node.name:
            continue
        last = pages[-1]
        lost = [one for one in pages if one.swa is not None and node.swa is None]
        if lost:
            losses.tombstones.append((last, lost))
        if last.state is not None and node.state is None:
            losses.states.append(last)
        if (lost or last in losses.states) and (last.locks[FULL] or oracle.below(last)):
            losses.inner.add(last.name)
    losses.count()
    return losses


def pages_of_node(oracle: Oracle, node: Seen) -> list[Page]:
    """Return the oracle's pages of a node."""
    return [page for page in oracle.path(*node.name) if page.depth > node.start]
