"""The map between the pages of two pools, against a dict that says the same more slowly."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from radixtide.tiers import Pairing

CARRIERS, PAGES, SIZE = 24, 9, 4


def at(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)


def made() -> Pairing:
    """Return a map in which carrier pages 5, 2, 7 have the pages 0, 3, 1."""
    pairing = Pairing(8, 4, SIZE)
    pairing.pair(at(5, 2, 7), at(0, 3, 1))
    return pairing


def test_a_fresh_map_has_no_pairs() -> None:
    pairing = Pairing(8, 4)
    assert pairing.to_pair.tolist() == [-1] * 8
    assert pairing.to_carrier.tolist() == [-1] * 4
    assert pairing.page_size == 1


def test_a_pair_is_known_from_both_sides() -> None:
    pairing = made()
    assert pairing.to_pair.tolist() == [-1, -1, 3, -1, -1, 0, -1, 1]
    assert pairing.to_carrier.tolist() == [5, 7, -1, 2]
    assert pairing.pages_of(at(7, 6, 2)).tolist() == [1, -1, 3]
    assert pairing.pages_of(slice(4, 8)).tolist() == [-1, 0, -1, 1]


def test_a_slot_is_paired_with_the_one_at_the_same_place_of_its_page() -> None:
    pairing = made()
    assert pairing.slots_of(at(8, 11, 9, 22, 0, 31)).tolist() == [12, 15, 13, 2, -1, 7]
    assert pairing.slots_of(at()).tolist() == []


def test_pages_of_one_slot_are_slots() -> None:
    pairing = Pairing(8, 4)
    pairing.pair(at(5, 2), at(0, 3))
    assert pairing.slots_of(at(2, 3, 5)).tolist() == [3, -1, 0]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_slots_are_int64_whatever_they_are_asked_with(size: int, kind: type[np.generic]) -> None:
    pairing = Pairing(8, 4, size)
    pairing.pair(at(5), at(0))
    asked = np.arange(8 * size, dtype=kind)
    assert pairing.slots_of(asked).dtype == np.int64
    assert pairing.pages_of(at(5)).dtype == np.int64
    assert pairing.to_pair.dtype == pairing.to_carrier.dtype == np.int32
    assert pairing.slots_of(asked).tolist() == [
        slot - 5 * size if slot // size == 5 else -1 for slot in range(8 * size)
    ]


def test_the_largest_slots_do_not_overflow() -> None:
    pairing = Pairing(2**17, 2**17, 2**14)
    last = 2**17 - 1
    pairing.pair(at(last), at(last))
    assert pairing.slots_of(np.array([2**31 - 1], dtype=np.int32)).tolist() == [2**31 - 1]


def test_clearing_forgets_both_sides_and_does_not_mind_pages_without_a_pair() -> None:
    pairing = made()
    pairing.clear(at(3, 2))
    assert pairing.to_pair.tolist() == [-1, -1, -1, -1, -1, 0, -1, 1]
    assert pairing.to_carrier.tolist() == [5, 7, -1, -1]
    pairing.clear(at(3, 2))
    pairing.clear(at())
    assert pairing.to_carrier.tolist() == [5, 7, -1, -1]
    pairing.clear(slice(0, 4))
    assert set(pairing.to_pair.tolist()) == set(pairing.to_carrier.tolist()) == {-1}


def test_moving_gives_a_pair_to_another_carrier_page() -> None:
    pairing = made()
    pairing.move(at(5, 6, 7), at(0, 1, 4))
    assert pairing.to_pair.tolist() == [0, -1, 3, -1, 1, -1, -1, -1]
    assert pairing.to_carrier.tolist() == [0, 4, -1, 2]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("pair", (at(2), at(2))),
        ("pair", (at(0), at(0))),
        ("pair", (at(0, 1), at(2))),
        ("move", (at(5), at(2))),
        ("move", (at(5), at(0, 1))),
    ],
    ids=["carrier taken", "page taken", "uneven", "target taken", "uneven move"],
)
def test_what_would_lose_a_pair_is_an_error_that_changes_nothing(
    call: str, arguments: tuple[npt.NDArray[np.int64], ...]
) -> None:
    pairing = made()
    with pytest.raises(AssertionError):
        getattr(pairing, call)(*arguments)
    assert pairing.to_pair.tolist() == made().to_pair.tolist()
    assert pairing.to_carrier.tolist() == made().to_carrier.tolist()


def test_what_audits_read_is_the_map_itself_and_can_not_be_written() -> None:
    pairing = made()
    view = pairing.to_pair
    pairing.clear(at(3))
    assert view[2] == -1
    for one in (pairing.to_pair, pairing.to_carrier):
        with pytest.raises(ValueError, match="read-only"):
            one[0] = 1


def test_what_is_returned_is_a_copy() -> None:
    pairing = made()
    pairing.pages_of(slice(0, 8))[:] = 9
    pairing.slots_of(at(8))[:] = 9
    assert pairing.to_pair.tolist() == made().to_pair.tolist()


class PairingMachine(RuleBasedStateMachine):
    """Any sequence of sound calls; the model is a dict from carrier page to page."""

    drawn = Bundle("drawn")

    def __init__(self) -> None:
        super().__init__()
        self.pairing = Pairing(CARRIERS, PAGES, SIZE)
        self.model: dict[int, int] = {}

    def free(self) -> tuple[list[int], list[int]]:
        pages = set(range(PAGES)) - set(self.model.values())
        return sorted(set(range(CARRIERS)) - set(self.model)), sorted(pages)

    @precondition(lambda self: len(self.model) < PAGES)
    @rule(data=st.data())
    def pair(self, data: st.DataObject) -> None:
        carriers, pages = (data.draw(st.permutations(one)) for one in self.free())
        count = data.draw(st.integers(0, min(len(carriers), len(pages))))
        self.pairing.pair(at(*carriers[:count]), at(*pages[:count]))
        self.model |= dict(zip(carriers[:count], pages[:count], strict=True))

    @rule(pages=st.sets(st.integers(0, PAGES - 1)))
    def clear(self, pages: set[int]) -> None:
        self.pairing.clear(at(*pages))
        self.model = {c: page for c, page in self.model.items() if page not in pages}

    @rule(begin=st.integers(0, PAGES), end=st.integers(0, PAGES))
    def clear_run(self, begin: int, end: int) -> None:
        self.pairing.clear(slice(begin, end))
        self.model = {c: page for c, page in self.model.items() if not begin <= page < end}

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        targets = data.draw(st.permutations(self.free()[0]))
        sources = data.draw(st.permutations(sorted(set(range(CARRIERS)) - set(targets[:3]))))
        count = data.draw(st.integers(0, 3))
        self.pairing.move(at(*sources[:count]), at(*targets[:count]))
        moved = {
            target: self.model.pop(source)
            for source, target in zip(sources[:count], targets[:count], strict=True)
            if source in self.model
        }
        self.model |= moved

    @rule(slots=st.lists(st.integers(0, CARRIERS * SIZE - 1)))
    def ask(self, slots: list[int]) -> None:
        found = self.pairing.slots_of(at(*slots)).tolist()
        assert found == [
            self.model[slot // SIZE] * SIZE + slot % SIZE if slot // SIZE in self.model else -1
            for slot in slots
        ]
        pages = [slot // SIZE for slot in slots]
        assert self.pairing.pages_of(at(*pages)).tolist() == [
            self.model.get(page, -1) for page in pages
        ]

    @invariant()
    def both_directions_tell_the_model(self) -> None:
        back = {page: carrier for carrier, page in self.model.items()}
        assert self.pairing.to_pair.tolist() == [self.model.get(c, -1) for c in range(CARRIERS)]
        assert self.pairing.to_carrier.tolist() == [back.get(page, -1) for page in range(PAGES)]


TestPairingMachine = PairingMachine.TestCase
