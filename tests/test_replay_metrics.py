"""What a replay counts: histograms close to the truth, series of bounded length."""

import asyncio
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtide.cli.replay_metrics import CallTimes, Histogram, Sample, Series, Tally


@given(st.lists(st.integers(0, 2**40), min_size=1), st.sampled_from([1, 50, 90, 99, 100]))
def test_a_percentile_is_within_a_128th_of_the_exact_one(values: list[int], percent: int) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = float(np.percentile(values, percent, method="inverted_cdf"))
    assert abs(histogram.percentile(percent) - exact) <= exact / 128


def test_merged_histograms_count_what_both_counted() -> None:
    parts, whole = [Histogram(), Histogram()], Histogram()
    for value in range(1000):
        parts[value % 2].add(value)
        whole.add(value)
    parts[0].merge(parts[1])
    assert (parts[0].count, parts[0].counts) == (whole.count, whole.counts)


def test_an_empty_histogram_tells_zero() -> None:
    assert Histogram().percentile(99) == 0


def test_calls_are_timed_whether_they_answer_or_raise() -> None:
    async def answer() -> int:
        return 7

    async def refuse() -> int:
        raise ZeroDivisionError

    async def calls() -> CallTimes:
        times = CallTimes()
        assert await times.timed("good", answer()) == 7
        with pytest.raises(ZeroDivisionError):
            await times.timed("bad", refuse())
        assert times.roll().keys() == {"good", "bad"}
        await times.timed("good", answer())
        times.roll()
        return times

    total = asyncio.run(calls()).total
    assert {name: histogram.count for name, histogram in total.items()} == {"good": 2, "bad": 1}
    assert total["good"].percentile(50) > 0


def sample(number: int) -> Sample:
    histogram = Histogram()
    histogram.add(number)
    return Sample(number, number, number, 0, 0, {}, 0, 0, {"allocate": histogram})


def test_a_series_of_any_length_stays_bounded_and_even() -> None:
    series = Series(limit=16)
    for number in range(1000):
        if series.tick():
            series.add(sample(number))
    times = [one.at_ns for one in series.samples]
    assert 8 <= len(times) <= 16
    assert times[-1] >= 900
    steps = {b - a for a, b in itertools.pairwise(times)}
    assert max(steps) <= 2 * min(steps)


def test_thinning_a_series_loses_no_latency() -> None:
    series = Series(limit=4)
    for number in range(11):
        series.add(sample(number))
    assert sum(one.latency["allocate"].count for one in series.samples) == 11
    assert series.samples[-1].at_ns == 10


def test_a_tally_sums_up_the_ways_to_end() -> None:
    tally = Tally(completed=5, refused=2, aborted=1)
    assert tally.requests == 8
    assert tally.hit_ratio == 0.0
    tally.count_prompt(blocks=4, tokens=2000)
    tally.count_hits(blocks=1, tokens=500, reason="evicted", of=2000)
    assert tally.hit_ratio == 0.25
    assert tally.miss_reasons == {"evicted": 1}
