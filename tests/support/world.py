"""A cache with some of everything in it, and its parts by name."""

from __future__ import annotations

from typing import Any, NamedTuple

from radixtide import AllocateParams, Request, UnifiedRadixCache
from radixtide.actors.ledger import Entry
from radixtide.actors.state import State
from radixtide.components.full import FullComponent
from radixtide.tree.node import ComponentData, Node
from support.caches import key, match, state_of, store, take, tokens

PIN_BUDGET = 16


class World(NamedTuple):
    """What :func:`populate` made.

    ``stem`` [0, 8) has the children ``left`` (locked by a request, which also holds slots) and
    ``right`` (locked by a receipt); ``loose`` and ``older`` are evictable leaves, ``pinned`` is
    pinned; ``anonymous`` slots are held without a request.
    """

    state: State
    full: FullComponent
    stem: Node
    left: Node
    right: Node
    loose: Node
    older: Node
    pinned: Node
    req: Request
    entry: Entry
    receipt: int
    anonymous: Any

    def data(self, node: Node) -> ComponentData:
        """Return Full's record on `node`."""
        return self.full.data(node)


async def populate(cache: UnifiedRadixCache) -> World:
    """Fill a cache of page size 4 and at least 64 slots, with pins.budget = 16."""
    state = state_of(cache)
    full = cache._components[0]
    assert isinstance(full, FullComponent)
    left = await store(cache, key(16))
    right = await store(cache, key([*tokens(8), *tokens(8, 100)]), prev=0)
    older = await store(cache, key(tokens(4, 200)))
    loose = await store(cache, key(tokens(8, 300)))
    pinned = await store(cache, key(tokens(4, 400)))
    await cache.pin(key(tokens(4, 400)), ttl=3600)
    held = await match(cache, key([*tokens(8), *tokens(8, 100)]), lock=True)
    assert held.receipt is not None
    req = Request(rid="r", origin_input_ids=tokens(22))
    await match(cache, req.key(), req=req, lock=True)
    await cache.allocate(AllocateParams(num_tokens=6, req=req))
    anonymous = (await take(cache, 4)).numpy()
    node = state.tree.nodes
    entry = state.ledger.get(req)
    assert entry is not None
    stem = node[left.last_device_node.id].parent
    assert stem is not None
    return World(
        state=state,
        full=full,
        stem=stem,
        left=node[left.last_device_node.id],
        right=node[right.last_device_node.id],
        loose=node[loose.last_device_node.id],
        older=node[older.last_device_node.id],
        pinned=node[pinned.last_device_node.id],
        req=req,
        entry=entry,
        receipt=held.receipt.id,
        anonymous=anonymous,
    )
