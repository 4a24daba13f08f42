"""Virtual time, and on which tier a hit counts."""

from __future__ import annotations

import pytest
import torch

from radixtide.cli.replay_clock import VirtualClock
from radixtide.cli.replay_metrics import Found, Tally
from radixtide.components.api import MatchResult, MissReason, NodeHandle

NODE = NodeHandle(1, 0, 0)


def match(
    device: int, reason: MissReason, host: int = 0, full: MissReason | None = None
) -> MatchResult:
    return MatchResult(
        torch.arange(device),
        NODE,
        NODE,
        NODE,
        reason,
        device + host,
        host_hit_length=host,
        full_miss_reason=full,
    )


def test_what_is_due_is_called_in_order_at_its_time() -> None:
    clock = VirtualClock()
    seen: list[object] = []
    for seconds, name in ((2.0, "b"), (1.0, "a"), (2.0, "c"), (5.0, "d")):
        clock.call_later(seconds, lambda name: seen.append((name, clock.now_ns)), name)
    clock.advance(3_000_000_000)
    assert seen == [("a", 10**9), ("b", 2 * 10**9), ("c", 2 * 10**9)]
    assert clock.now_ns == 3 * 10**9
    assert clock.jump()
    assert (clock.now_ns, seen[-1]) == (5 * 10**9, ("d", 5 * 10**9))
    assert not clock.jump()


def test_time_never_runs_backwards_and_what_is_late_happens_at_once() -> None:
    clock = VirtualClock()
    seen: list[object] = []
    clock.advance(10**9)
    clock.advance(5)
    assert clock.now_ns == 10**9
    clock.call_later(-1.0, seen.append, 1)
    clock.call_later(1.0, lambda: clock.call_later(0.5, seen.append, 2))
    clock.advance(3 * 10**9)
    assert seen == [1, 2]


@pytest.mark.parametrize(
    ("length", "host", "storage", "tiers"),
    [
        (1000, 0, 0, {"device": 10, "host": 0, "storage": 0}),
        (1000, 400, 0, {"device": 6, "host": 4, "storage": 0}),
        (1000, 450, 130, {"device": 5, "host": 3, "storage": 2}),
        (1000, 1000, 1000, {"device": 0, "host": 0, "storage": 10}),
    ],
)
def test_a_block_counts_on_the_tier_where_its_last_page_was(
    length: int, host: int, storage: int, tiers: dict[str, int]
) -> None:
    tally = Tally()
    found = Found(match(length, MissReason.EVICTED), length, host, storage)
    assert tally.count_found(found, 1500, 100, 10) == length
    assert tally.tier_blocks == tiers
    assert sum(tally.tier_blocks.values()) == tally.block_hits
    assert tally.tier_tokens["device"] == length - host
    assert sum(tally.tier_tokens.values()) == tally.token_hits
    assert tally.lost == {"evicted": 500}


@pytest.mark.parametrize(
    ("length", "full", "reason"),
    [
        (300, MissReason.NEVER_STORED, "on_host"),  # found there, and stayed there
        (500, MissReason.EVICTED, "evicted"),  # all of it came up: this is why it was not more
        (500, None, "never_stored"),
    ],
)
def test_after_a_load_the_reason_is_that_of_both_tiers(
    length: int, full: MissReason | None, reason: str
) -> None:
    found = Found(match(300, MissReason.ON_HOST, 200, full), length, length - 300)
    assert found.reason == reason
    tally = Tally()
    tally.count_found(found, 900, 100, 10)
    assert tally.miss_reasons == {reason: 1}
    assert tally.full_hits == 500
    assert sum(tally.lost.values()) == 900 - length
