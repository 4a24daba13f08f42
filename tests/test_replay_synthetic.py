"""Generated traffic: repeatable, in order, and shaped as its kind says."""

import itertools

import pytest

from radixtide.cli.replay_source import TraceRequest, summarise
from radixtide.cli.replay_synthetic import Kind, Synthetic
from radixtide.cli.replay_tokens import ID_LIMIT

LONGEST = 40_000


def generate(kind: Kind, requests: int = 400, seed: int = 7) -> list[TraceRequest]:
    return list(Synthetic(kind, requests, seed, LONGEST))


@pytest.mark.parametrize("kind", Kind)
def test_the_same_seed_gives_the_same_requests_and_another_gives_others(kind: Kind) -> None:
    assert generate(kind) == generate(kind)
    assert generate(kind) != generate(kind, seed=8)


@pytest.mark.parametrize("kind", Kind)
def test_requests_are_numbered_in_order_of_arrival_and_bounded(kind: Kind) -> None:
    requests = generate(kind)
    assert [request.number for request in requests] == list(range(400))
    assert all(a.arrival_ns <= b.arrival_ns for a, b in itertools.pairwise(requests))
    for request in requests:
        assert request.input_length > 0
        assert request.input_length + request.output_length <= LONGEST
        assert all(length > 0 for length in request.lengths)


@pytest.mark.parametrize("kind", Kind)
def test_prompts_repeat_what_came_before(kind: Kind) -> None:
    source = Synthetic(kind, 400, 7, LONGEST)
    summary = summarise(source, source.block, distinct=True)
    assert summary.distinct_tokens < 0.7 * summary.input_tokens


def test_a_turn_of_a_chat_holds_the_turn_before_it_and_its_answer() -> None:
    requests = generate(Kind.CHAT)
    turns = [request for request in requests if request.after is not None]
    assert len(turns) > 100
    for turn in turns:
        assert isinstance(turn.after, int)
        before = requests[turn.after]
        assert turn.ids[:-1] == (*before.ids, before.stream)
        assert turn.lengths[:-1] == (*before.lengths, before.output_length)


def test_an_agents_steps_branch() -> None:
    steps = [request.after for request in generate(Kind.TOOLS) if request.after is not None]
    assert len(steps) > len(set(steps)) > 0


def test_long_documents_are_long_and_read_by_many() -> None:
    requests = generate(Kind.DOCUMENTS)
    assert max(request.lengths[0] for request in requests) > 10_000
    assert len({request.ids[0] for request in requests}) < len(requests) / 2


def test_what_is_asked_is_nobody_elses_and_no_output() -> None:
    asked = [request.ids[-1] for request in generate(Kind.MIXED)]
    assert len(set(asked)) == len(asked)
    assert max(asked) < ID_LIMIT


def test_lengths_are_cut_to_a_small_pool() -> None:
    for request in Synthetic(Kind.MIXED, 300, 1, 64):
        assert request.input_length + request.output_length <= 64
