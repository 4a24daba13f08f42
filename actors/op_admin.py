"""Pins, reset, audit, repair, and a picture of the tree."""

from __future__ import annotations

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import AuditAll, PinKey, Print, Repair, Reset, UnpinKey
from radixtide.actors.messages import (
    Audit,
    AuditAgainst,
    Clear,
    Describe,
    GetSizes,
    Lock,
    LockSplit,
    Rebuild,
    Splits,
    TakeCensus,
    Validate,
)
from radixtide.actors.op_evict import drop_pin, expire_pins
from radixtide.actors.op_match_tiers import cut_to, usable_steps
from radixtide.actors.pins import Pin
from radixtide.actors.state import State
from radixtide.actors.structure_audit import audit_protection, audit_structure
from radixtide.actors.tier_audit import audit_tiers
from radixtide.components.api import AuditReport, PinResult, Violation
from radixtide.components.outcomes import Census
from radixtide.configs.errors import Busy, InvalidInput, PinRefused
from radixtide.tree.node import IN_STORAGE, ON_DEVICE, ON_HOST, Node


def pin_key(state: State, p: PinKey) -> Conversation:
    """Keep the cached part of a key from eviction for a time."""
    if p.ttl_s <= 0:
        raise InvalidInput(f"ttl {p.ttl_s} s is not positive")
    state.check_key(p.key)
    yield from expire_pins(state)
    board = state.pins
    name = board.name(p.key)
    expires_at = state.clock() + p.ttl_s
    known = board.get(name)
    walk = state.tree.walk(p.key)
    if state.tiers is not None:
        # A pin keeps what is on the device there.
        cut_to(walk, usable_steps(state.tiers, walk)[0])
    if known is not None and walk.matched <= known.node.end:
        board.renew(known, expires_at)
        return PinResult(known.node.end, board.budget - board.units)
    if not walk.matched:
        raise PinRefused(
            f"nothing of the key's {walk.limit} units (whole pages) is cached; insert it first"
        )
    cost = board.cost(walk.last) + walk.inside_units
    if walk.inside is not None and walk.inside.pins:
        cost = 0
    if board.units + cost > board.budget:
        raise PinRefused(
            f"pinning {cost} more units would exceed the budget: {board.units} of "
            f"{board.budget} (pins.budget) are pinned; unpin others or raise it"
        )
    if walk.inside is not None:
        # A plan first: nothing is split for a component that does not answer.
        yield state.all(Validate(walk.path, walk.inside, walk.inside_units))
    elif state.lacks_border(walk.last):
        yield state.all(GetSizes())
    splits: Splits = (state.split_inside(walk),) if walk.inside is not None else ()
    node = walk.last
    splits += state.make_borders(node)
    records = yield state.all(LockSplit(node, splits) if splits else Lock(node))
    if known is not None:
        # More of the key is cached than when it was pinned: the new pin covers the old one.
        yield from drop_pin(state, known)
    board.add(Pin(name, node, records, expires_at))
    return PinResult(node.end, board.budget - board.units)


def unpin_key(state: State, p: UnpinKey) -> Conversation:
    """Let a pinned key go."""
    state.check_key(p.key)
    pin = state.pins.get(state.pins.name(p.key))
    if pin is None:
        return False
    yield from drop_pin(state, pin)
    return True


def reset(state: State, p: Reset) -> Conversation:
    """Drop everything, or raise Busy with the holders' names."""
    holders = [f"request {entry.rid!r}" for entry in state.ledger.entries()]
    holders += [
        f"receipt {number} on node {held.node.id}"
        for number, held in state.receipts.items()
        if held.rid is None
    ]
    sizes = yield state.all(GetSizes())
    for cell, size in zip(state.cells, sizes, strict=True):
        if size.held and not len(state.ledger):
            holders.append(f"{size.held} slots of pool {cell.name} allocated without a request")
    tiers = state.tiers
    if tiers is not None:
        holders += [f"{job.kind} {job.number} of {job.units} units" for job in tiers.jobs]
    if holders:
        shown = ", ".join(holders[:8]) + (", ..." if len(holders) > 8 else "")
        raise Busy(f"reset refused, {len(holders)} holder(s) live: {shown}")
    yield state.all(Clear())
    for pin in state.pins.all():
        state.pins.remove(pin)
    state.tree.reset()
    state.ghosts.clear()
    if tiers is not None:
        tiers.forget()


def audit(state: State, p: AuditAll) -> Conversation:
    """Recount everything in the tree and in every component."""
    found: list[Violation] = list(audit_structure(state))
    claims = state.ledger.claims()
    jobs = None if state.tiers is None else state.tiers.jobs.pins()
    for part in (yield state.each(lambda index: Audit(state.locked(index), claims, jobs))):
        found.extend(part)
    if state.others:
        found.extend(audit_protection(state.tree, state.traits))
    if state.others or state.tiers is not None:
        carrier = yield state.carrier, TakeCensus()
        if state.tiers is not None:
            found.extend(audit_tiers(state, state.tiers, carrier))
        for part in (yield [(cell, AuditAgainst(carrier)) for cell in state.others]):
            found.extend(part)
    return AuditReport(tuple(found))


def repair(state: State, p: Repair) -> Conversation:
    """Make the records true after a crash: what is in doubt is dropped, what is held stays."""
    hollow: set[Node] = set()
    holders = set(state.ledger.claims())
    jobs = None if state.tiers is None else state.tiers.jobs.pins()
    hollow.update((yield state.carrier, Rebuild(state.locked(0), holders, jobs=jobs)))
    # What crashes from now on is repaired once more.
    state.repair_waits = False
    if state.others or state.tiers is not None:
        # The others follow what the carrier says it has.
        carrier = yield state.carrier, TakeCensus()
        if state.tiers is not None:
            note_census(state, carrier)
    if state.others:
        yield [
            (cell, Rebuild(state.locked(index), holders, carrier, jobs))
            for index, cell in enumerate(state.cells)
            if index
        ]
    state.counters.repairs += 1
    # Deepest first, so that a parent has no children left when its turn comes.
    for node in sorted(hollow, key=lambda one: (-one.end, one.id)):
        if node.parent is not None and not node.children:
            state.tree.remove(node)


def note_census(state: State, carrier: Census) -> None:
    """Note on which tiers the carrier has each node, after a repair."""
    for node in state.tree:
        here = ON_DEVICE if node.id in carrier.nodes else 0
        there = ON_HOST if node.id in carrier.host_nodes else 0
        if node.tiers & ON_DEVICE and not here:
            node.epoch += 1
        node.tiers = here | there | (node.tiers & IN_STORAGE)


def pretty_print(state: State, p: Print) -> Conversation:
    """Draw the tree as text, at most `max_nodes` nodes."""
    tree = state.tree
    head = (
        f"tree: {len(tree)} nodes, generation {tree.generation}, page {state.page_size}, "
        f"{len(state.receipts)} receipts, {len(state.ledger)} requests, {len(state.pins)} pins"
    )
    lines = [head]
    shown: list[tuple[Node, int]] = []
    stack = [(node, 0) for node in reversed(list(tree.root.children.values()))]
    while stack and len(shown) < p.max_nodes:
        node, depth = stack.pop()
        shown.append((node, depth))
        stack.extend((child, depth + 1) for child in reversed(list(node.children.values())))
    texts = yield state.all(Describe([node for node, _ in shown]))
    for node, depth in shown:
        words = "; ".join(text[node.id] for text in texts)
        pinned = ", pinned" if node.pins else ""
        lines.append(
            f"{'  ' * depth}- node {node.id} [{node.start}, {node.end}) touch {node.touch}, "
            f"hits {node.hits}, priority {node.priority}{pinned} | {words}"
        )
    if len(shown) < len(tree):
        lines.append(f"... and {len(tree) - len(shown)} more nodes")
    return "\n".join(lines)
