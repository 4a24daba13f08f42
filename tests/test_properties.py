"""Property tests: hypothesis drives a real cache and the model, and shrinks what differs."""

from __future__ import annotations

from typing import Literal

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.driver import NAMESPACES, Live, Setup
from support.driver_calls import Steps
from support.model import Namespace, Tokens
from support.walk import LETTERS, spell

BOUNDED = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
NIGHTLY = settings(
    BOUNDED, max_examples=1200, stateful_step_count=80, derandomize=False, print_blob=True
)

Spelled = tuple[int, list[int], list[int]]

keys = st.tuples(
    st.sampled_from((0, 0, 0, 1, 2, 3)),
    st.lists(st.integers(0, LETTERS - 1), max_size=6),
    st.lists(st.integers(1, 2), max_size=3),
)
picks = st.integers(0, 2**16)
"""A place in a list whose length is only known when the rule runs; taken modulo that length."""


class CacheMachine(RuleBasedStateMachine):
    """One cache and its model; a subclass names the page size."""

    page = 4
    steps: Steps

    @initialize(
        bigram=st.booleans(),
        delivery=st.sampled_from(("direct", "queued")),
        policy=st.sampled_from(("lru", "lru", "lfu", "fifo", "priority", "slru", "tlru")),
        pages=st.sampled_from((3, 8, 16)),
    )
    def open(
        self, bigram: bool, delivery: Literal["direct", "queued"], policy: str, pages: int
    ) -> None:
        self.steps = Steps(
            Setup(
                page=self.page,
                pages=pages,
                bigram=bigram,
                delivery=delivery,
                policy=policy,
                budget_pages=2,
            )
        )

    def teardown(self) -> None:
        if hasattr(self, "steps"):
            self.steps.close()

    def spelled(self, key: Spelled) -> tuple[Namespace, Tokens]:
        namespace, letters, tail = key
        tokens = spell(letters, tail[: max(self.page - 1, 0)], self.page)
        return NAMESPACES[namespace], tokens or (1,)

    def live(self, pick: int) -> Live:
        return self.steps.live[pick % len(self.steps.live)]

    # -- the tree ------------------------------------------------------------------

    @rule(key=keys, lock=st.booleans())
    def match(self, key: Spelled, lock: bool) -> None:
        self.steps.match(*self.spelled(key), lock=lock and len(self.steps.receipts) < 4)

    @rule(key=keys, prev=picks, priority=st.integers(-1, 2))
    def insert(self, key: Spelled, prev: int, priority: int) -> None:
        namespace, tokens = self.spelled(key)
        model = self.steps.model
        pages = model.units(tokens) // self.page
        if (short := pages - len(self.steps.loose)) > 0:
            self.steps.allocate(short * self.page)
        if len(self.steps.loose) >= pages:
            cached = len(model.path(namespace, tokens))
            self.steps.insert(namespace, tokens, prev % (cached + 1) * self.page, priority)

    @rule(units=st.integers(0, 64))
    def evict(self, units: int) -> None:
        self.steps.evict(units)

    @rule(units=st.integers(0, 80))
    def allocate(self, units: int) -> None:
        self.steps.allocate(units)

    @precondition(lambda self: self.steps.loose)
    @rule(pick=picks)
    def free(self, pick: int) -> None:
        loose = self.steps.loose
        self.steps.free(loose[pick % len(loose) :])

    # -- locks and pins --------------------------------------------------------------

    @precondition(lambda self: self.steps.handles)
    @rule(pick=picks)
    def lock(self, pick: int) -> None:
        self.steps.lock(pick % len(self.steps.handles))

    @precondition(lambda self: self.steps.receipts)
    @rule(pick=picks)
    def unlock(self, pick: int) -> None:
        self.steps.unlock(pick % len(self.steps.receipts))

    @precondition(lambda self: self.steps.released)
    @rule(pick=picks)
    def unlock_again(self, pick: int) -> None:
        self.steps.unlock_again(pick % len(self.steps.released))

    @rule(key=keys)
    def hold_and_evict(self, key: Spelled) -> None:
        self.steps.hold_and_evict(*self.spelled(key))

    @rule(key=keys, ttl=st.integers(0, 3))
    def pin(self, key: Spelled, ttl: int) -> None:
        self.steps.pin(*self.spelled(key), ttl=float(ttl))

    @precondition(lambda self: self.steps.model.pins)
    @rule(pick=picks)
    def unpin(self, pick: int) -> None:
        pins = list(self.steps.model.pins)
        self.steps.unpin(*pins[pick % len(pins)])

    @rule(seconds=st.integers(1, 3))
    def advance(self, seconds: int) -> None:
        self.steps.advance(float(seconds))

    # -- requests --------------------------------------------------------------------

    @precondition(lambda self: len(self.steps.live) < 4)
    @rule(key=keys, row=st.booleans(), priority=st.integers(0, 2), lock=st.booleans())
    def start(self, key: Spelled, row: bool, priority: int, lock: bool) -> None:
        self.steps.start(*self.spelled(key), priority=priority, row=row, lock=lock)

    @precondition(lambda self: self.steps.live)
    @rule(pick=picks, units=st.integers(1, 40), output=st.lists(st.integers(1, 2), max_size=3))
    def serve(self, pick: int, units: int, output: list[int]) -> None:
        live = self.live(pick)
        live.req.output_ids.extend(output)
        self.steps.allocate(units, live)

    @precondition(lambda self: any(live.held.used for live in self.steps.live))
    @rule(pick=picks, committed=st.none() | st.integers(-1, 40))
    def cache_a_chunk(self, pick: int, committed: int | None) -> None:
        computing = [live for live in self.steps.live if live.held.used]
        live = computing[pick % len(computing)]
        if committed is not None:
            committed += live.held.protected
        self.steps.unfinished(live, committed)

    @precondition(lambda self: self.steps.live)
    @rule(pick=picks, is_insert=st.booleans())
    def finish(self, pick: int, is_insert: bool) -> None:
        self.steps.finish(self.live(pick), None, is_insert)

    @precondition(lambda self: self.steps.live)
    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        self.steps.abort(self.live(pick))

    @rule()
    def reset(self) -> None:
        self.steps.reset()


class PageOf1(CacheMachine):
    page = 1


class PageOf16(CacheMachine):
    page = 16


MACHINES = (PageOf1, CacheMachine, PageOf16)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES, ids=lambda one: f"page {one.page}")
def test_any_sequence_of_calls_agrees_with_the_model(machine: type[CacheMachine]) -> None:
    run_state_machine_as_test(machine, settings=BOUNDED)


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES, ids=lambda one: f"page {one.page}")
def test_many_sequences_of_calls_agree_with_the_model(machine: type[CacheMachine]) -> None:
    run_state_machine_as_test(machine, settings=NIGHTLY)
