"""Rows that stand on a load which may still be under way, or fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from radixtide.actors.op_load import LoadStarted
from radixtide.actors.tier_handles import LoadBack
from radixtide.components.api import LockReceipt, NodeHandle
from radixtide.configs.errors import CallTimeout, LoadFailed
from radixtide.tiers.copy_engine import LayerGate
from support.serving_models import RANDOM
from support.serving_rows import Table, loaded, random_tokens

WAIT_S = 20.0
NEAR = 1e-4


class Loading:
    """A text whose first 40 tokens are being loaded: what they should be comes layer by layer."""

    def __init__(self, table: Table, seed: int = 1) -> None:
        self.table = table
        self.text = table.deal(random_tokens(seed, 41))
        table.forward(table.row(self.text, 40))
        self.slots = {"full": self.text.slots[:40], "swa": self.text.window_slots[:40]}
        self.aside = {
            name: [[part[slots].clone() for part in layer] for layer in self.memory(name)]
            for name, slots in self.slots.items()
            if name in table.cache.memory
        }
        for name in self.aside:
            for layer in self.memory(name):
                for part in layer:
                    part[self.slots[name]] = float("nan")
        self.layers = max(len(self.memory(name)) for name in table.cache.memory)
        self.gate = LayerGate(self.layers)
        node = NodeHandle(1, 1, 1)
        started = LoadStarted(
            1,
            LockReceipt(1, node, 1),
            0,
            40,
            torch.from_numpy(self.slots["full"]),
            [self.gate],
            True,
        )
        self.handle = LoadBack(table.cache, started)

    def memory(self, name: str) -> list[list[torch.Tensor]]:
        """Return the tensors of a pool."""
        parts: list[list[torch.Tensor]] = self.table.cache.memory[name].parts()
        return parts

    def bring(self, at: int) -> None:
        """Let layer `at` of every pool arrive."""
        for name, layers in self.aside.items():
            if at < len(layers):
                for part, was in zip(self.memory(name)[at], layers[at], strict=True):
                    part[self.slots[name]] = was
        self.gate.open(at)


@pytest.fixture(params=RANDOM)
def loading(request: pytest.FixtureRequest) -> Loading:
    """Return a text that is being loaded, for each kind of model."""
    return Loading(Table(loaded(request.param)))


def test_each_layer_is_waited_for_before_it_is_read(loading: Loading) -> None:
    table, text = loading.table, loading.text
    with ThreadPoolExecutor(1) as model:
        answer = model.submit(table.forward, table.row(text, 1, load=loading.handle))
        for at in range(loading.layers):
            assert not answer.done()
            loading.bring(at)
        (outcome,) = answer.result(WAIT_S)
    assert table.difference(text, outcome) < NEAR


def test_a_pass_does_not_end_before_the_last_layer_was_found_right(loading: Loading) -> None:
    table, text = loading.table, loading.text
    for at in range(loading.layers - 1):
        loading.bring(at)
    with ThreadPoolExecutor(1) as model:
        answer = model.submit(table.forward, table.row(text, 1, load=loading.handle))
        loading.gate.fail("a page was damaged")
        (outcome,) = answer.result(WAIT_S)
    assert outcome.lost
    assert outcome.logits is None


@pytest.mark.parametrize("when", ["before", "in the middle"])
def test_a_load_that_fails_takes_no_other_row_along(loading: Loading, when: str) -> None:
    table, text = loading.table, loading.text
    others = [table.deal(random_tokens(seed, 30)) for seed in (5, 6)]
    for other in others:
        table.forward(table.row(other, 29))
    if when == "before":
        loading.gate.fail("planted")
    rows = [
        table.row(others[0], 1),
        table.row(text, 1, load=loading.handle),
        table.row(others[1], 1),
    ]
    with ThreadPoolExecutor(1) as model:
        answer = model.submit(table.forward, *rows)
        if when != "before":
            loading.bring(0)
            loading.gate.fail("planted")
        outcomes = answer.result(WAIT_S)
    assert [one.lost for one in outcomes] == [False, True, False]
    for other, outcome in zip(others, outcomes[::2], strict=True):
        assert table.difference(other, outcome) < NEAR


def test_a_load_that_is_over_lets_its_row_run_with_the_others(loading: Loading) -> None:
    table, text = loading.table, loading.text
    for at in range(loading.layers):
        loading.bring(at)
    other = table.deal(random_tokens(5, 30))
    table.forward(table.row(other, 29))
    rows = (table.row(text, 1, load=loading.handle), table.row(other, 1))
    with passes_of(table) as passes:
        outcomes = table.forward(*rows)
    assert passes == [2]
    assert table.difference(text, outcomes[0]) < NEAR
    assert table.difference(other, outcomes[1]) < NEAR


def test_who_waits_too_long_for_a_load_is_lost() -> None:
    table = Table(loaded("random:llama"), load_timeout_s=0.01)
    loading = Loading(table)
    (outcome,) = table.forward(table.row(loading.text, 1, load=loading.handle))
    assert outcome.lost
    with pytest.raises(CallTimeout):
        loading.handle.wait_layer(0, 0)
    loading.gate.fail("given up")
    with pytest.raises(LoadFailed):
        loading.handle.wait_layer(0, 0)


def test_a_slow_load_does_not_hold_up_those_that_decode() -> None:
    table = Table(loaded("random:llama"))
    loading = Loading(table)
    other = table.deal(random_tokens(5, 30))
    table.forward(table.row(other, 29))
    written = threading.Event()
    pool = table.cache.memory["full"]
    rows = (table.row(loading.text, 1, load=loading.handle), table.row(other, 1))
    with ThreadPoolExecutor(1) as model:
        answer = model.submit(table.forward, *rows)
        while not written.is_set():
            # The last slot of the one that decodes is written in the last layer, too.
            if not bool(pool.buffers[-1][0][other.slots[29]].isnan().any()):
                written.set()
        assert not answer.done()
        for at in range(loading.layers):
            loading.bring(at)
        outcomes = answer.result(WAIT_S)
    assert table.difference(loading.text, outcomes[0]) < NEAR


@contextmanager
def passes_of(table: Table) -> Iterator[list[int]]:
    """Note the number of rows of each pass of the model."""
    passes: list[int] = []

    def note(_: object, __: object, fields: dict[str, torch.Tensor]) -> None:
        passes.append(len(fields["input_ids"]))

    hook = table.model.model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield passes
    finally:
        hook.remove()
