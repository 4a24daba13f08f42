"""A cache of Full, SWA and Mamba with some of everything in it, and its parts by name."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from radixtide import AllocateParams, Request, UnifiedRadixCache
from radixtide.actors.ledger import Entry
from radixtide.actors.state import State
from radixtide.components.auxiliary import AuxiliaryComponent
from radixtide.components.full import FullComponent
from radixtide.components.mamba import MambaComponent
from radixtide.components.swa import SwaComponent
from radixtide.tree.node import ComponentData, Node
from support.caches import key, match, state_of, tokens
from support.hybrids import chunk, hybrid, put

HYBRID_WORLD: Final = hybrid(page_size=4, window=8, size=160, swa_size=128, states=16)
"""What make_config needs for a cache that :func:`populate_hybrid` can fill."""


class HybridWorld(NamedTuple):
    """What :func:`populate_hybrid` made: pages of 4, windows of 8.

    ``stem`` [0, 8) leads to ``left`` [8, 16) with ``tail`` [16, 24), and to the tombstone ``gone``
    [8, 16) with ``right`` [16, 24). Both leaves have a state. ``right`` and its window are locked
    by ``receipt``. ``spent`` is locked by a receipt that gave up its window. ``trunk`` [0, 8) leads
    to ``twig`` [8, 12), so that a window that ends there begins inside of ``trunk``. ``loose``,
    with a state, and ``older``, without, are leaves that nobody locks.

    ``req`` has cached 16 of 40 tokens, with a state, and given back the SWA slots of ``[16, 32)``;
    ``own`` are its Full slots from 16 on. ``waiting`` holds one state and nothing else. The caller
    holds the Full slots ``anonymous`` with their pairs, and the state ``anonymous_state``.
    """

    state: State
    full: FullComponent
    swa: SwaComponent
    mamba: MambaComponent
    stem: Node
    left: Node
    tail: Node
    gone: Node
    right: Node
    spent: Node
    trunk: Node
    twig: Node
    loose: Node
    older: Node
    cached: Node
    req: Request
    entry: Entry
    waiting: Request
    idle: Entry
    receipt: int
    own: Any
    anonymous: Any
    anonymous_state: int

    def part(self, name: str) -> AuxiliaryComponent:
        """Return the component `name`."""
        return self.swa if name == "swa" else self.mamba

    def data(self, component: str, node: str) -> ComponentData:
        """Return what a component keeps on a node; both by name."""
        at: Node = getattr(self, node)
        return self.full.data(at) if component == "full" else self.part(component).data(at)

    def value(self, component: str, node: str) -> Any:
        """Return the slots that a component has on a node; both by name."""
        value = self.data(component, node).value
        assert value is not None
        return value


async def populate_hybrid(cache: UnifiedRadixCache) -> HybridWorld:
    """Fill a cache of ``HYBRID_WORLD``."""
    state = state_of(cache)
    full, swa, mamba = cache._components
    assert isinstance(full, FullComponent)
    assert isinstance(swa, SwaComponent)
    assert isinstance(mamba, MambaComponent)
    nodes = state.tree.nodes

    async def leaf(wanted: Any, **fields: Any) -> Node:
        return nodes[(await put(cache, key(wanted), **fields)).node.id]

    tail = await leaf(24, state=True)
    fork = [*tokens(8), *tokens(16, 100)]
    right = await leaf(fork, prev=8, live=8, state=True)
    spent = await leaf(tokens(8, 200), state=True)
    trunk = await leaf(tokens(8, 300))
    twig = await leaf(tokens(12, 300), prev=8)
    older = await leaf(tokens(4, 400))
    loose = await leaf(tokens(8, 500), state=True)
    held = await match(cache, key(fork), lock=True)
    worn = await match(cache, key(tokens(8, 200)), lock=True)
    assert held.receipt is not None
    assert worn.receipt is not None
    await cache.dec_swa_lock_only(worn.receipt)

    req = Request("r", tokens(40, 600))
    await match(cache, req.key(), req=req, lock=True, cow_mamba=True)
    await cache.allocate(AllocateParams(num_tokens=40, mamba_num=3, req=req))
    await chunk(cache, req, 16)
    assert await cache.release_window(req, 40) == 16
    waiting = Request("w", tokens(8, 700))
    await cache.allocate(AllocateParams(mamba_num=1, req=waiting))
    mine = await cache.allocate(AllocateParams(num_tokens=8, mamba_num=1))
    entry, idle = state.ledger.get(req), state.ledger.get(waiting)
    assert entry is not None
    assert idle is not None
    assert entry.node is not None
    assert mine.mamba_indices is not None
    left, gone = tail.parent, right.parent
    assert left is not None
    assert gone is not None
    assert left.parent is not None
    assert left.parent is gone.parent
    return HybridWorld(
        state=state,
        full=full,
        swa=swa,
        mamba=mamba,
        stem=left.parent,
        left=left,
        tail=tail,
        gone=gone,
        right=right,
        spent=spent,
        trunk=trunk,
        twig=twig,
        loose=loose,
        older=older,
        cached=entry.node,
        req=req,
        entry=entry,
        waiting=waiting,
        idle=idle,
        receipt=held.receipt.id,
        own=full.holdings[entry.holder].slots(),
        anonymous=mine.indices.numpy(),
        anonymous_state=int(mine.mamba_indices[0]),
    )
