"""From logits to tokens, and what a client may ask for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixtide.configs.errors import InvalidInput
from radixtide.serving.params import SamplingParams
from radixtide.serving.sampling import Sampler

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625]))


def draws(count: int, **params: Any) -> list[int]:
    sampler = Sampler(SamplingParams(**{"seed": 1, **params}))
    return [sampler.draw(LOGITS, at).id for at in range(count)]


def test_greedy_takes_the_most_likely_and_of_equal_ones_the_lowest() -> None:
    sampler = Sampler(SamplingParams(temperature=0.0))
    assert sampler.draw(torch.tensor([0.0, 3.0, 1.0, 3.0]), 0).id == 1
    assert draws(5, top_k=1) == [0] * 5


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    counts = np.bincount(draws(1500), minlength=5) / 1500
    # Four standard deviations of the most likely one.
    assert np.abs(counts - LOGITS.exp().numpy()).max() < 4 * math.sqrt(0.25 / 1500)


def test_a_low_temperature_sharpens_and_a_high_one_flattens() -> None:
    assert draws(500, temperature=0.5).count(0) > 325 > draws(500).count(0)
    assert draws(500, temperature=5.0).count(0) < 175
    assert draws(50, temperature=1e-9) == [0] * 50, "so low that all else underflows"


def test_top_k_and_top_p_leave_out_what_is_less_likely() -> None:
    assert set(draws(200, top_k=2)) == {0, 1}
    assert set(draws(200, top_p=0.7)) == {0, 1}, "0.5 are too few, with 0.25 more it is enough"
    assert set(draws(200, top_p=0.5)) == {0}
    assert set(draws(200, top_k=3, top_p=0.9)) == {0, 1, 2}
    assert set(draws(200, top_k=99, top_p=1.0)) == {0, 1, 2, 3, 4}


def test_top_p_reaches_beyond_the_tokens_that_are_looked_at_first() -> None:
    logits = torch.zeros(5000)
    sampler = Sampler(SamplingParams(seed=3, top_p=0.5))
    drawn = {sampler.draw(logits, at).id for at in range(400)}
    # Of 400 draws from 2,500 some thirty are of one that was drawn before.
    assert 340 < len(drawn) <= 400
    assert len({token // 500 for token in drawn}) >= 5, "not of the first 1,024 alone"


def test_a_seed_draws_the_same_again_and_another_one_differs() -> None:
    assert draws(50) == draws(50)
    assert draws(50) != draws(50, seed=2)
    assert Sampler(SamplingParams()).seed != Sampler(SamplingParams()).seed


def test_a_draw_depends_on_its_place_and_on_no_draw_before() -> None:
    sampler = Sampler(SamplingParams(seed=1))
    backwards = [sampler.draw(LOGITS, at).id for at in reversed(range(50))]
    assert backwards[::-1] == draws(50)


def test_the_last_digits_of_the_logits_change_a_draw_only_where_two_tokens_meet() -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(0.0, 2.0, 50_000)).float()
    noise = torch.from_numpy(rng.normal(0.0, 1e-5, 50_000)).float()
    for params in ({}, {"top_k": 1000}, {"top_p": 0.9}):
        sampler = Sampler(SamplingParams(seed=1, temperature=1.5, **params))
        changed = sum(
            sampler.draw(logits, at).id != sampler.draw(logits + noise, at).id for at in range(100)
        )
        assert changed <= 1


def test_logprobs_are_the_models_own_whatever_the_temperature() -> None:
    params = SamplingParams(temperature=0.3, top_k=2, seed=1, logprobs=3)
    token = Sampler(params).draw(LOGITS + 7.0, 0)
    assert token.logprob == pytest.approx(float(LOGITS[token.id]), abs=1e-6)
    assert [one for one, _ in token.top] == [0, 1, 2]
    assert [value for _, value in token.top] == pytest.approx(LOGITS[:3].tolist(), abs=1e-6)
    assert Sampler(SamplingParams(logprobs=0)).draw(LOGITS, 0).top == ()
    assert Sampler(SamplingParams()).draw(LOGITS, 0).logprob is None


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    st.floats(0.05, 3.0),
    st.floats(0.01, 1.0),
    st.integers(0, 50),
    st.integers(0, 1000),
)
def test_what_is_drawn_is_among_what_top_k_and_top_p_leave(
    values: list[float], temperature: float, top_p: float, top_k: int, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    chosen = Sampler(params).draw(torch.tensor(values), seed).id
    weights = np.exp((np.array(values, dtype=np.float32).astype(float) - max(values)) / temperature)
    better = weights[weights > weights[chosen] * (1 + 1e-9)]
    kept = np.sort(weights)[::-1][: top_k or None]
    assert not top_k or len(better) < top_k
    assert better.sum() <= top_p * kept.sum() * (1 + 1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"top_k": None},
        {"seed": -1},
        {"seed": 2**63},
        {"logprobs": -1},
        {"stop_token_ids": (-1,)},
        {"stop_token_ids": None},
        {"stop_token_ids": 5},
        {"stop_token_ids": (None,)},
        {"temperature": 10**400},
        {"ignore_eos": "x"},
    ],
    ids=str,
)
def test_what_is_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        SamplingParams(**wrong)
