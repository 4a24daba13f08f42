"""Steps that several tests of the host tier begin with."""

from __future__ import annotations

from radixtide.components.host_tier import HostTier
from radixtide.tree import Node
from radixtide.tree.node import ON_DEVICE
from support.host_jobs import HostWorld


def full_world() -> HostWorld:
    """Full alone: 64 slots in pages of 4 on the device, 32 on the host."""
    return HostWorld(host={"full": 32})


def hybrid_world() -> HostWorld:
    """All three, with pages of 4 and a window of two of them."""
    return HostWorld(("full", "swa", "mamba"), window=8, host={"full": 64, "swa": 32, "mamba": 4})


def put(world: HostWorld, *sequences: list[int]) -> list[Node]:
    """Insert sequences, with all that belongs to them; return the node at each one's end."""
    nodes: list[Node] = []
    for one in sequences:
        assert world.insert(one, state=True) is not None
        nodes.append(world.walk(one).last)
    world.check()
    return nodes


def back_up(world: HostWorld, *nodes: Node) -> None:
    """Back nodes up, with all above them."""
    for node in nodes:
        number = world.begin_backup(node)
        assert number is not None
        world.check()
        world.end_backup(number)
    world.check()


def host_sizes(part: HostTier) -> tuple[int, int, int, int]:
    """Return (free, evictable, protected, in flight) of the host pool."""
    sizes = part.host_sizes()
    assert sizes is not None
    assert sizes.held == 0
    return sizes.free, sizes.evictable, sizes.protected, sizes.in_flight


def away(world: HostWorld, *nodes: Node) -> None:
    """Back nodes up and take all off the device that can go."""
    back_up(world, *nodes)
    world.evict(world.full, 10**6)
    assert not any(node.tiers & ON_DEVICE for node in nodes)
    world.check()
