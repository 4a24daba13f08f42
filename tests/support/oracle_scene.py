"""A cache with its oracle, and calls that tell the oracle what a scheduler would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from radixtide import AllocateParams, InsertParams, MatchPrefixParams, Request, UnifiedRadixCache
from radixtide.components.api import MatchResult
from radixtide.simulation.oracle import Oracle
from radixtide.simulation.setup import SETS, Setup
from radixtide.tree.key import RadixKey

PAGE = 4
HYBRID = SETS[-1]


def setup(components: tuple[str, ...] = ("full",), **fields: Any) -> Setup:
    return Setup(components=components, page_size=PAGE, pages=12, swa_pages=12, **fields)


@dataclass
class Scene:
    """A cache, its oracle, and calls that tell the oracle what a scheduler would."""

    cache: UnifiedRadixCache
    oracle: Oracle

    @property
    def stateful(self) -> bool:
        return "mamba" in self.cache.config.components

    async def take(self, tokens: int, who: str = "s0", req: Request | None = None) -> Any:
        states = int(self.stateful) if req is None else 3 * self.stateful
        params = AllocateParams(tokens, mamba_num=states, req=req)
        before = self.oracle.snapshot()
        given = await self.cache.allocate(params)
        assert not self.oracle.allocated(params, given, before)
        assert not self.oracle.granted(given.indices, "full", who)
        if given.mamba_indices is not None:
            assert not self.oracle.granted(given.mamba_indices, "mamba", who)
        return given

    async def put(self, key: RadixKey) -> Any:
        given = await self.take(key.units)
        oracle = self.oracle
        oracle.wrote(key, 0, given.indices)
        state = given.mamba_indices
        if state is not None:
            oracle.wrote_state(key, key.units, int(state[0]))
            oracle.gone(state, "mamba")
        oracle.asked(key, key.units)
        oracle.gone(given.indices, "full")
        params = InsertParams(key, given.indices, state)
        before = oracle.snapshot()
        result = await self.cache.insert(params)
        assert not oracle.inserted(params, result, before)
        return params, result, before

    async def match(self, key: RadixKey, **fields: Any) -> tuple[Any, MatchResult, Any]:
        params = MatchPrefixParams(key, **fields)
        before = self.oracle.snapshot()
        return params, await self.cache.match_prefix(params), before

    async def good_match(self, key: RadixKey, **fields: Any) -> MatchResult:
        params, result, before = await self.match(key, **fields)
        assert not self.oracle.matched(params, result, before)
        return result


async def opened(shape: Setup) -> Scene:
    cache = UnifiedRadixCache(shape.config())
    await cache.__aenter__()
    oracle = Oracle(shape)
    oracle.bind(cache)
    return Scene(cache, oracle)


def fresh(scene: Scene) -> Oracle:
    """Return an oracle that has seen nothing yet."""
    oracle = Oracle(setup(tiers="host"))
    oracle.bind(scene.cache)
    return oracle


def key(pages: int, first: int = 0, **names: Any) -> RadixKey:
    return RadixKey(list(range(first * PAGE, (first + pages) * PAGE)), **names)
