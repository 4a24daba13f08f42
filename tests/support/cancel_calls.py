"""Every public call, as a test cancels it: how it is made, and what its caller must give back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from radixtide import AllocateParams, EvictParams, MatchPrefixParams
from radixtide.configs.schema import StorageConfig
from support.caches import state_of
from support.cancel_scene import Scene

Kind = Literal["takes", "gives", "either"]
"""A cancelled call that takes has no effect, and one that gives has all of it; the others are made
of several calls, so they have none or all.
"""
Needs = Literal["nothing", "window", "tiers", "storage"]
Make = Callable[[Scene], Awaitable[Any]]
GiveBack = Callable[[Scene, Any], Awaitable[Any]]


async def _nothing(s: Scene, result: Any) -> None:
    return None


class CallCase(NamedTuple):
    """A way to make a public call. ``public``: its name. ``give_back``: what its caller owes then.

    ``prepare``: made before, not cancelled; ``make`` gets what it returns. ``holding``: whether
    the call is made while other things are held.
    """

    public: str
    kind: Kind
    make: Callable[[Scene, Any], Awaitable[Any]]
    give_back: GiveBack = _nothing
    needs: Needs = "nothing"
    prepare: Make | None = None
    holding: bool = True


async def _free(s: Scene, result: Any) -> None:
    await s.cache.free(result.indices)
    if result.mamba_indices is not None:
        await s.cache.free(result.mamba_indices, "mamba")


async def _abort_fresh(s: Scene, result: Any) -> None:
    await s.cache.abort_req(s.fresh)


async def _unlock(s: Scene, result: Any) -> None:
    receipt = getattr(result, "receipt", result)
    await s.cache.dec_lock_ref(receipt)


async def _close(s: Scene, result: Any) -> None:
    await result.close()


async def _with_eviction(s: Scene, _: Any) -> Any:
    free = (await s.cache.stats()).pools["full"]["device"].free
    return await s.cache.allocate(AllocateParams(num_tokens=free + s.page))


async def _held(s: Scene, _: Any) -> None:
    async with s.cache.hold(s.found):
        for _turn in range(3):
            await asyncio.sleep(0)


async def _load(s: Scene) -> Any:
    return await s.cache.load_back(s.found)


async def _fetch(s: Scene) -> Any:
    return await s.cache.prefetch(s.key(10))


async def _detached(s: Scene) -> None:
    await s.cache.detach_storage()


async def _insert_something(s: Scene) -> None:
    """Begin a transfer, for calls that wait for one."""
    await s.put(s.new_key(2, at=70))


async def _as_first_of(s: Scene) -> None:
    """Let the new request be for what is on the host, and have its match."""
    s.fresh = type(s.fresh)("fresh", s.span(8))
    await s.match(s.key(8), req=s.fresh, lock=True)


def _match(s: Scene, wanted: Any, **fields: Any) -> Awaitable[Any]:
    return s.cache.match_prefix(MatchPrefixParams(key=wanted, **fields))


def _inside(s: Scene) -> Any:
    """Return a key that ends inside a node."""
    return s.key([*s.span(3, 200), *s.span(2, 900)])


CALLS: dict[str, CallCase] = {
    "match_prefix": CallCase("match_prefix", "takes", lambda s, _: _match(s, _inside(s))),
    "match_prefix with a lock": CallCase(
        "match_prefix", "takes", lambda s, _: _match(s, _inside(s), lock=True), _unlock
    ),
    "match_prefix for a request": CallCase(
        "match_prefix",
        "takes",
        lambda s, _: _match(s, s.fresh.key(), req=s.fresh, lock=True, cow_mamba=s.has("mamba")),
        _abort_fresh,
    ),
    "insert": CallCase("insert", "gives", lambda s, _: s.cache.insert(s.insert)),
    "allocate": CallCase(
        "allocate",
        "takes",
        lambda s, _: s.cache.allocate(
            AllocateParams(num_tokens=s.page, mamba_num=int(s.has("mamba")))
        ),
        _free,
    ),
    "allocate with eviction": CallCase("allocate", "takes", _with_eviction, _free),
    "allocate for a request": CallCase(
        "allocate",
        "takes",
        lambda s, _: s.cache.allocate(AllocateParams(num_tokens=2 * s.page, req=s.fresh)),
        _abort_fresh,
    ),
    "allocate more for a request": CallCase(
        "allocate",
        "takes",
        lambda s, _: s.cache.allocate(AllocateParams(num_tokens=s.page + 1, req=s.running)),
    ),
    "free": CallCase("free", "gives", lambda s, _: s.cache.free(s.loose)),
    "evict": CallCase(
        "evict", "gives", lambda s, _: s.cache.evict(EvictParams(num_tokens=2 * s.page))
    ),
    "inc_lock_ref": CallCase(
        "inc_lock_ref",
        "takes",
        lambda s, _: s.cache.inc_lock_ref(s.found.last_device_node),
        _unlock,
    ),
    "dec_lock_ref": CallCase("dec_lock_ref", "gives", lambda s, _: s.cache.dec_lock_ref(s.receipt)),
    "dec_swa_lock_only": CallCase(
        "dec_swa_lock_only", "gives", lambda s, _: s.cache.dec_swa_lock_only(s.receipt)
    ),
    "hold": CallCase("hold", "takes", _held),
    "device_indices": CallCase(
        "device_indices", "takes", lambda s, _: s.cache.device_indices(s.found.last_device_node)
    ),
    "component_slots": CallCase(
        "component_slots",
        "takes",
        lambda s, _: s.cache.component_slots("swa", s.loose),
        needs="window",
    ),
    "release_window": CallCase(
        "release_window",
        "gives",
        lambda s, _: s.cache.release_window(s.running, 4 * s.page),
    ),
    "cache_unfinished_req": CallCase(
        "cache_unfinished_req", "gives", lambda s, _: s.cache.cache_unfinished_req(s.running)
    ),
    "cache_finished_req": CallCase(
        "cache_finished_req", "gives", lambda s, _: s.cache.cache_finished_req(s.running)
    ),
    "cache_finished_req without insert": CallCase(
        "cache_finished_req",
        "gives",
        lambda s, _: s.cache.cache_finished_req(s.running, is_insert=False),
    ),
    "abort_req": CallCase("abort_req", "gives", lambda s, _: s.cache.abort_req(s.running)),
    "pin": CallCase("pin", "gives", lambda s, _: s.cache.pin(s.key(s.span(6, 200)), 1000.0)),
    "unpin": CallCase("unpin", "gives", lambda s, _: s.cache.unpin(s.key(4))),
    "stats": CallCase("stats", "takes", lambda s, _: s.cache.stats()),
    "audit": CallCase("audit", "gives", lambda s, _: s.cache.audit()),
    "pretty_print": CallCase("pretty_print", "gives", lambda s, _: s.cache.pretty_print()),
    "picture": CallCase("picture", "takes", lambda s, _: s.cache.picture()),
    "reset": CallCase("reset", "either", lambda s, _: s.cache.reset(5.0), holding=False),
    "reset beside a transfer": CallCase(
        "reset",
        "either",
        lambda s, _: s.cache.reset(5.0),
        needs="tiers",
        prepare=_insert_something,
        holding=False,
    ),
    "load_back": CallCase(
        "load_back", "takes", lambda s, _: s.cache.load_back(s.found), _close, "tiers"
    ),
    "load_back for a request": CallCase(
        "load_back",
        "takes",
        lambda s, _: s.cache.load_back(s.found, s.fresh),
        _abort_fresh,
        "tiers",
        prepare=_as_first_of,
    ),
    "wait of a load": CallCase(
        "load_back", "takes", lambda s, load: load.wait(), _nothing, "tiers", prepare=_load
    ),
    "close of a load": CallCase(
        "load_back", "gives", lambda s, load: load.close(), _nothing, "tiers", prepare=_load
    ),
    "prefetch": CallCase(
        "prefetch", "takes", lambda s, _: s.cache.prefetch(s.key(10)), _close, "storage"
    ),
    "wait of a fetch": CallCase(
        "prefetch", "takes", lambda s, fetch: fetch.wait(), _nothing, "storage", prepare=_fetch
    ),
    "close of a fetch": CallCase(
        "prefetch", "either", lambda s, fetch: fetch.close(), _nothing, "storage", prepare=_fetch
    ),
    "drain": CallCase(
        "drain", "takes", lambda s, _: s.cache.drain(), needs="tiers", prepare=_insert_something
    ),
    "step": CallCase("step", "takes", lambda s, _: s.cache.step(), needs="tiers"),
    "flush of the device": CallCase(
        "flush", "either", lambda s, _: s.cache.flush("device"), needs="tiers"
    ),
    "flush of the host": CallCase(
        "flush",
        "either",
        lambda s, _: s.cache.flush("host", 5.0),
        needs="tiers",
        prepare=_insert_something,
    ),
    "flush of the storage": CallCase(
        "flush", "either", lambda s, _: s.cache.flush("storage", 5.0), needs="storage"
    ),
    "detach_storage": CallCase(
        "detach_storage", "gives", lambda s, _: s.cache.detach_storage(), needs="storage"
    ),
    "attach_storage": CallCase(
        "attach_storage",
        "either",
        lambda s, _: s.cache.attach_storage(StorageConfig(url="memory:")),
        needs="storage",
        prepare=_detached,
    ),
}


def settled_books(s: Scene) -> None:
    """Assert that the coordinator's books of transfers are empty."""
    tiers = state_of(s.cache).tiers
    if tiers is not None:
        assert not tiers.loads, tiers.loads
        assert not tiers.fetches, tiers.fetches
        assert not len(tiers.jobs)
