"""The request as scheduler and cache share it: its tokens, its slices, its key."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

import numpy as np
import pytest
import torch

from radixtide import InvalidKey, RadixKey, Request

HEAD = [3, 1, 4, 1, 5, 9]
FORMS: dict[str, Any] = {
    "list": HEAD,
    "tuple": tuple(HEAD),
    "array": array("q", HEAD),
    "int64": np.array(HEAD, dtype=np.int64),
    "int32": np.array(HEAD, dtype=np.int32),
    "tensor": torch.tensor(HEAD),
}
EVERY_FORM = pytest.mark.parametrize("head", FORMS.values(), ids=FORMS)


@EVERY_FORM
def test_tokens_are_the_prompt_and_the_answer(head: Any) -> None:
    req = Request(rid="r", origin_input_ids=head)
    assert req.tokens().tolist() == HEAD
    req.output_ids.extend([2, 6])
    assert req.tokens().tolist() == [*HEAD, 2, 6]
    assert req.tokens().dtype == np.int64


@EVERY_FORM
def test_a_segment_is_what_a_slice_of_all_tokens_is(head: Any) -> None:
    req = Request(rid="r", origin_input_ids=head, output_ids=[2, 6])
    for start, end in itertools.combinations_with_replacement(range(9), 2):
        assert req.segment(start, end).tolist() == [*HEAD, 2, 6][start:end], (start, end)


@EVERY_FORM
def test_the_key_of_a_request_is_in_its_namespace(head: Any) -> None:
    req = Request(
        rid="r", origin_input_ids=head, output_ids=[2], extra_key="adapter", cache_salt="salt"
    )
    assert req.key() == RadixKey([*HEAD, 2], "adapter", "salt")
    assert req.key(4) == RadixKey(HEAD[:4], "adapter", "salt")
    assert req.key(100) == req.key()
    assert req.key(0) == RadixKey([], "adapter", "salt")
    assert req.key(5, is_bigram=True) == RadixKey(HEAD[:5], "adapter", "salt", is_bigram=True)


@pytest.mark.parametrize("output", [[-1], [2**63], [1.5], ["a"], [None]], ids=repr)
def test_an_answer_of_bad_tokens_has_no_key(output: list[Any]) -> None:
    req = Request(rid="r", origin_input_ids=HEAD, output_ids=output)
    with pytest.raises(InvalidKey):
        req.key()
    assert req.key(len(HEAD)) == RadixKey(HEAD)


def test_two_requests_do_not_share_their_answers() -> None:
    first, second = Request("a", HEAD), Request("b", HEAD)
    first.output_ids.append(1)
    assert second.output_ids == []
