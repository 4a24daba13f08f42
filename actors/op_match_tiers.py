"""Matching where there is a host tier: how far from the device, and how far with the host."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec

from radixtide.actors.state import State
from radixtide.actors.tier_messages import ValidateTiers
from radixtide.actors.tier_state import TierState
from radixtide.tree.node import LOADING, ON_DEVICE, Node
from radixtide.tree.radix_tree import Walk


class Reach(msgspec.Struct, gc=False):
    """How far a path can be reused, in steps (see Validate): from the device, and from either.

    ``any_steps``: how far the carrier alone goes. ``any_votes``: each voter's answer for either.
    """

    device: int
    either: int
    any_steps: int
    any_votes: list[Sequence[int]]


def usable_steps(tiers: TierState, walk: Walk) -> tuple[int, int]:
    """Return how many steps of `walk` the carrier has on the device, and on any tier.

    Both are closed upward, so only what is beyond the device is looked at. What was found to be
    damaged on the host is not usable.
    """
    path = walk.path
    steps = len(path)
    most = steps
    inside = walk.inside
    device = steps
    while device and not path[device - 1].tiers & ON_DEVICE:
        device -= 1
    if inside is not None:
        most += 1
        if device == steps and inside.tiers & ON_DEVICE:
            device += 1
    if tiers.condemned:
        for at in range(device, most):
            node = path[at] if at < steps else inside
            if node in tiers.condemned:
                most = at
                break
    return device, most


def find_reach(state: State, walk: Walk) -> Generator[Any, Any, Reach]:
    """Ask all components how far `walk` can be reused. A plan."""
    tiers = state.tiers
    assert tiers is not None
    device, most = usable_steps(tiers, walk)
    if not state.voters:
        return Reach(device, most, most, [])
    message = ValidateTiers(walk.path, walk.inside, walk.inside_units)
    replies = yield [(cell, message) for cell in state.voters]
    here = _common([one for one, _ in replies], device)
    either = _common([both for _, both in replies], most)
    if tiers.condemned and not tiers.condemned.isdisjoint(walk.path[:device]):
        # What a component needs of the host may be just what is damaged there.
        either = here
    return Reach(
        here,
        either,
        most,
        [both for _, both in replies],
    )


def _common(votes: list[Sequence[int]], most: int) -> int:
    """Return the largest step up to `most` that every voter accepts, or 0."""
    common = set(votes[0]).intersection(*votes[1:])
    return max((step for step in common if step <= most), default=0)


def cut_to(walk: Walk, steps: int) -> None:
    """Keep the first `steps` steps of `walk`; the last may be a part of a node."""
    if steps <= len(walk.path):
        walk.cut(steps)


def settle_walk(tiers: TierState, walk: Walk) -> int:
    """Cut an insert's `walk` before what is being loaded; return the depth that is on the device.

    What is on the host only, beyond that depth, takes the slots of the insert. A node that is just
    being loaded must not: its own slots are on their way; nor must one that was found damaged.
    """
    path = walk.path
    at = len(path)
    while at and not path[at - 1].tiers & ON_DEVICE:
        at -= 1
    inside = walk.inside
    if at == len(path) and (inside is None or inside.tiers & ON_DEVICE):
        return walk.matched
    for step in range(at, len(path)):
        if path[step].job & LOADING or path[step] in tiers.condemned:
            walk.cut(step)
            walk.limit = walk.matched - walk.base
            break
    else:
        if inside is not None and (inside.job & LOADING or inside in tiers.condemned):
            walk.cut(len(path))
            walk.limit = walk.matched - walk.base
    return path[at - 1].end if at else walk.base


def host_only(nodes: Sequence[Node]) -> list[Node]:
    """Return those of `nodes` that are not on the device."""
    return [node for node in nodes if not node.tiers & ON_DEVICE]
