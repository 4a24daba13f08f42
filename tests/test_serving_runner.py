"""The model runner: what it says of rows, what it reads and what it writes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from radixtide import UnifiedRadixCache
from radixtide.configs.errors import ConfigError
from radixtide.serving.geometry import cache_config
from radixtide.serving.models import load_model
from radixtide.serving.runner import ModelRunner
from support.serving_models import RANDOM
from support.serving_rows import TOKENS, Table, loaded, random_tokens

NEAR = 1e-4
"""Logits are of the order of one; another shape of the same sums changes them by some 1e-6."""

TEXT = random_tokens(1, 130)


@pytest.fixture(params=RANDOM)
def table(request: pytest.FixtureRequest) -> Table:
    """Return a runner for each kind of model."""
    return Table(loaded(request.param))


@pytest.mark.parametrize("chunks", [(130,), (64, 66), (1, 1, 70, 1, 23, 34), (129, 1), (30,) * 4])
def test_a_prompt_in_chunks_says_what_it_says_at_once(
    table: Table, chunks: tuple[int, ...]
) -> None:
    text = table.deal(TEXT)
    for count in chunks:
        (outcome,) = table.forward(table.row(text, count))
        assert table.difference(text, outcome) < NEAR


def test_requests_that_decode_side_by_side_say_what_each_says_alone(table: Table) -> None:
    texts = [table.deal(random_tokens(seed, length)) for seed, length in enumerate((9, 77, 40, 2))]
    for text in texts:
        table.forward(table.row(text, len(text.tokens) - 4 if len(text.tokens) > 4 else 1))
    for _ in range(2):
        running = [text for text in texts if text.computed < len(text.tokens)]
        outcomes = table.forward(*(table.row(text, 1) for text in running))
        for text, outcome in zip(running, outcomes, strict=True):
            assert table.difference(text, outcome) < NEAR


def test_chunks_and_single_tokens_in_one_pass_are_answered_in_order(table: Table) -> None:
    texts = [table.deal(random_tokens(seed, 50)) for seed in range(5)]
    for text in texts[1::2]:
        table.forward(table.row(text, 48))
    rows = [table.row(text, 1 if at % 2 else 20 + at) for at, text in enumerate(texts)]
    for text, outcome in zip(texts, table.forward(*rows), strict=True):
        assert table.difference(text, outcome) < NEAR


def test_a_prefix_is_read_where_another_request_wrote_it(table: Table) -> None:
    first, second = table.deal(TEXT[:100]), table.deal(TEXT[:60] + TEXT[90:130])
    table.forward(table.row(first, 60, keep_state=_kept(table)))
    second.slots[:60], second.window_slots[:60] = first.slots[:60], first.window_slots[:60]
    second.computed, second.state = 60, 7
    table.forward(table.row(first, 40))
    (outcome,) = table.forward(table.row(second, 40))
    assert table.difference(second, outcome) < NEAR


def test_a_prompt_of_one_token_begins_with_no_state(table: Table) -> None:
    one, other = table.deal([5]), table.deal([9, 8, 7, 6])
    table.forward(table.row(other, 3))
    outcomes = table.forward(table.row(one, 1), table.row(other, 1))
    assert table.difference(one, outcomes[0]) < NEAR
    assert table.difference(other, outcomes[1]) < NEAR


def test_a_slot_of_a_request_before_begins_anew(table: Table) -> None:
    before, after = table.deal(TEXT), table.deal(TEXT[40:70])
    table.forward(table.row(before, 130))
    after.slots, after.window_slots = before.slots[:30][::-1], before.window_slots[50:80]
    after.state = before.state
    (outcome,) = table.forward(table.row(after, 30))
    assert table.difference(after, outcome) < NEAR


def test_only_the_slots_of_the_new_tokens_are_written(table: Table) -> None:
    text = table.deal(TEXT)
    table.forward(table.row(text, 80))
    before = [part.clone() for part in table.parts()]
    table.forward(table.row(text, 50))
    written: dict[str, Any] = {
        "full": text.slots[80:],
        "swa": text.window_slots[80:],
        "mamba": [text.state],
    }
    at = 0
    for name, pool in table.cache.memory.items():
        for part in (part for layer in pool.parts() for part in layer):
            changed = (part != before[at]) & ~(part.isnan() & before[at].isnan())
            slots = set(changed.flatten(1).any(1).nonzero()[:, 0].tolist())
            unused = name == "mamba" and part.shape[1:] == (1,)
            assert slots == (set() if unused else {int(one) for one in written[name]})
            at += 1


@pytest.mark.parametrize("spec", ["random:qwen3_next", "random:lfm2"])
def test_a_kept_state_is_the_one_after_the_row(spec: str) -> None:
    table = Table(loaded(spec))
    text = table.deal(TEXT)
    table.forward(table.row(text, 64, keep_state=6))
    pool = table.cache.memory["mamba"]
    parts = [part for layer in pool.parts() for part in layer if part.shape[1:] != (1,)]
    assert all(torch.equal(part[text.state], part[6]) for part in parts)
    table.forward(table.row(text, 6))
    assert not any(torch.equal(part[text.state], part[6]) for part in parts)
    again = table.deal(TEXT)
    again.slots, again.window_slots = text.slots, text.window_slots
    again.computed, again.state = 64, 6
    (outcome,) = table.forward(table.row(again, 66))
    assert table.difference(again, outcome) < NEAR


def test_logits_come_where_they_are_wanted(table: Table) -> None:
    texts = [table.deal(random_tokens(seed, 20)) for seed in range(4)]
    for text in texts[2:]:
        table.forward(table.row(text, 19, logits=False))
    rows = [
        table.row(text, 1 if at > 1 else 20, logits=at % 2 == 0) for at, text in enumerate(texts)
    ]
    outcomes = table.forward(*rows)
    assert [one.logits is None for one in outcomes] == [False, True, False, True]
    for one in outcomes[::2]:
        assert one.logits is not None
        assert (one.logits.dtype, one.logits.shape) == (torch.float32, (table.model.vocabulary,))
    assert not any(one.lost for one in outcomes)


def test_a_pass_of_no_rows_answers_nothing(table: Table) -> None:
    assert table.forward() == []


@pytest.mark.parametrize("spec", RANDOM)
def test_half_precision_lies_in_the_pools_as_it_is_computed(spec: str) -> None:
    table = Table(load_model(spec, dtype="bfloat16"))
    text = table.deal(TEXT)
    for count in (100, 29, 1):
        (outcome,) = table.forward(table.row(text, count))
        # Two or three decimal digits, through four layers.
        assert table.difference(text, outcome) < 0.15
    assert table.cache.memory["full"].dtype == torch.bfloat16


def test_a_cache_of_another_model_is_refused() -> None:
    llama, gemma = loaded("random:llama"), loaded("random:gemma3")
    cache = UnifiedRadixCache(cache_config(gemma, tokens=TOKENS))
    with pytest.raises(ConfigError, match=r"pools\.full\.layers: 1, and random:llama needs 4"):
        ModelRunner(llama, cache)
    pools = msgspec.structs.replace(cache.config.pools, swa=None)
    config = msgspec.structs.replace(cache.config, components=("full",), window=None, pools=pools)
    with pytest.raises(ConfigError, match=r"pools\.swa: no memory, and random:gemma3 needs it"):
        ModelRunner(gemma, UnifiedRadixCache(config))
    other = msgspec.structs.replace(cache.config, window=23)
    with pytest.raises(ConfigError, match="window: 23, and random:gemma3 has 24"):
        ModelRunner(gemma, UnifiedRadixCache(other))


def _kept(table: Table) -> int | None:
    return 7 if "mamba" in table.model.kinds else None
