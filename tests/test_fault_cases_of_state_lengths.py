"""Faults that users of other caches reported: lengths at which a state serves (K4-8 to K4-10).

The table in test_fault_cases_of_states.py says which case is where.
"""

from __future__ import annotations

import itertools

import pytest

from radixtide import Request
from support.caches import (
    Delivery,
    key,
    match,
    tokens,
)
from support.hybrids import (
    ALL,
    STATES,
    admit,
    audited,
    build,
    chunk,
    drain,
    grid_of,
    read_state,
)

sets = pytest.mark.parametrize("components", [STATES, ALL], ids=["mamba", "swa+mamba"])
pages = pytest.mark.parametrize("page_size", [1, 2, 4])
Components = tuple[str, ...]

STATED = ["".join(kinds) for kinds in itertools.product("#.s:", repeat=3)]


@pytest.mark.parametrize("page_size", [1, 2])
@pytest.mark.parametrize("window", [1, 3])
async def test_k4_8_the_common_length_is_the_longest_that_every_component_accepts(
    delivery: Delivery, page_size: int, window: int
) -> None:
    """All patterns of windows and states on three pages, against a look at each length by itself.

    No component raises the length of another, and a state serves at exactly its own length.
    """
    async with audited(delivery, ALL, page_size=page_size, window=window, states=8) as cache:
        for number, pattern in enumerate(STATED):
            start = 100 * number
            await build(cache, pattern, start)
            for length in range(1, 3 * page_size + 1):
                usable = [
                    end * page_size
                    for end in range(1, length // page_size + 1)
                    if pattern[end - 1] in "s:"
                    and window_is_whole(pattern[:end], page_size, window)
                ]
                found = await match(cache, key(tokens(length, start)))
                expected = max(usable, default=0)
                assert len(found.device_indices) == expected, (pattern, length)
                assert found.full_kv_hit_length == length - length % page_size
            # One pattern after the other: what is full is evicted whole.
            await cache.reset()


def window_is_whole(pattern: str, page_size: int, window: int) -> bool:
    """Return whether the last window of pages has SWA, or all of them have."""
    live = [kind in "#s" for kind in pattern for _ in range(page_size)]
    return all(live) or (len(live) >= window and all(live[-window:]))


@sets
async def test_k4_8_a_match_that_is_a_token_short_of_a_state_does_not_use_it(
    delivery: Delivery, components: Components
) -> None:
    """A state can not be rewound: one token less falls back to the state before it, exactly."""
    async with audited(delivery, components, states=8, holds_states=True) as cache:
        req = await admit(cache, "r", tokens(12))
        for length in (4, 8, 12):
            await chunk(cache, req, length)
        await cache.cache_finished_req(req)
        for length in range(1, 13):
            other = Request("other", [*tokens(length), 99])
            found = await match(cache, other.key(), req=other, cow_mamba=True)
            expected = length - length % 4
            assert len(found.device_indices) == expected
            if expected:
                assert read_state(cache, other.mamba_pool_idx) == expected
            else:
                assert other.mamba_pool_idx is None
            await cache.abort_req(other)
        await drain(cache)


@sets
@pytest.mark.parametrize(("page_size", "interval"), [(2, 8), (2, 2), (4, 8), (1, 8), (4, 6)])
async def test_k4_9_the_state_of_a_hit_is_the_one_of_its_own_length(
    delivery: Delivery, components: Components, page_size: int, interval: int
) -> None:
    """Pages and states have units of their own: deep and shallow hits get the state they need."""
    async with audited(
        delivery,
        components,
        page_size=page_size,
        window=4,
        chunk=interval,
        extra_buffer=True,
        states=40,
        holds_states=True,
    ) as cache:
        grid = grid_of(cache)
        req = await admit(cache, "r", tokens(50))
        for length in range(1, 51):
            if length % grid == 0 or length % 7 == 0:
                await chunk(cache, req, length)
        await cache.cache_finished_req(req)
        last = 50 - 50 % grid
        for length in (24, 8, 48, 50, 12, 25, 47, 3):
            other = Request("other", tokens(length))
            found = await match(cache, other.key(), req=other, lock=True, cow_mamba=True)
            expected = min(length - length % grid, last)
            assert len(found.device_indices) == expected, length
            if expected:
                assert read_state(cache, other.mamba_pool_idx) == expected
            await cache.abort_req(other)
        await drain(cache)


@sets
@pytest.mark.parametrize(("page_size", "interval"), [(1, None), (1, 4), (2, 4), (2, 2)])
@pytest.mark.parametrize("cap", [0, 2])
async def test_k4_10_a_shared_prefix_gets_a_state_at_its_branch_and_the_reason_is_counted(
    delivery: Delivery, components: Components, page_size: int, interval: int | None, cap: int
) -> None:
    """Five prompts share six tokens: one miss of each kind, then hits at the branch point."""
    fields = {} if interval is None else {"chunk": interval, "extra_buffer": True}
    async with audited(
        delivery, components, page_size=page_size, states=24, cap=cap, size=128, **fields
    ) as cache:
        grid = grid_of(cache)
        branch = 6 - 6 % grid
        hits, told = [], []
        for turn in range(5):
            prompt = [*tokens(6), *tokens(4, 100 * (turn + 1))]
            told.append((await match(cache, key(prompt))).mamba_branching_seqlen)
            req = await admit(cache, f"r{turn}", prompt)
            hits.append(req.cache_protected_len)
            checkpoint = told[-1]
            if checkpoint is not None:
                await chunk(cache, req, checkpoint)
            await chunk(cache, req, 10)
            await cache.cache_finished_req(req)
        assert told == [None, branch, None, None, None]
        assert hits == [0, 0, branch, branch, branch]
        counters = (await cache.stats()).counters
        # Each prompt was matched twice: to look, and to be admitted. Where the grid does not reach
        # the branch, Full goes on beyond the state each time.
        misses = 2 if branch == 6 else 8
        assert counters["miss.no_state"] == misses
        assert counters["miss.never_stored"] == 10 - misses
        assert counters["miss.window_gap"] == 0
        await drain(cache)
