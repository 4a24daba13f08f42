"""The bytes behind the slots: whatever a match hands out holds the state of just those tokens."""

from __future__ import annotations

from typing import Literal

import pytest

from support.driver import Setup
from support.driver_calls import Steps
from support.walk import Walk

LAYOUTS: tuple[Literal["mha", "mla"], ...] = ("mha", "mla")


@pytest.mark.parametrize("stored", LAYOUTS)
@pytest.mark.parametrize(("page", "bigram"), [(1, False), (4, True), (16, False)])
def test_rows_of_every_match_carry_the_stamp_of_their_tokens(
    page: int, bigram: bool, stored: Literal["mha", "mla"]
) -> None:
    walked = Walk(Setup(page=page, pages=10, bigram=bigram, stored=stored), seed=page, longest=4)
    walked.run(400)
    assert walked.steps.evicted > 20 * page, "too little pressure for slots to be used again"
    walked.close()


@pytest.mark.parametrize("stored", LAYOUTS)
def test_a_stamp_of_other_tokens_is_noticed(stored: Literal["mha", "mla"]) -> None:
    steps = Steps(Setup(stored=stored))
    key = (1, 2, 3, 4, 5, 6, 7, 8)
    steps.allocate(8)
    steps.insert((None, None), key, 0, 0)
    steps.match((None, None), key)
    assert steps.stamps is not None
    ((slots, _, _),) = steps.nodes().values()
    # The same tokens in another namespace, and one token that differs early on.
    for namespace, other in ((("a", None), key), ((None, None), (9, *key[1:]))):
        steps.stamps.write(list(slots), namespace, other, 0)
        with pytest.raises(AssertionError):
            steps.match((None, None), key)
    steps.discard()
