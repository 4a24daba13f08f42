"""Text out of tokens: whole characters only, the same whatever the pieces, never past a stop."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from radixtide.serving.http.text import PENDING_MAX, Detokenizer, StopFinder
from radixtide.serving.tokens import ByteTokenizer

BROKEN = "\ufffd"


class MarkTokenizer:
    """Words with a leading mark, which is a blank but where the text begins: as SentencePiece."""

    def decode(self, ids: list[int]) -> str:
        return "".join(f" w{one}" for one in ids).removeprefix(" ")


def pieces(data: bytes) -> list[str]:
    """Return what is told after each byte of `data`, and at the end."""
    reader = Detokenizer(ByteTokenizer())
    return [*(reader.push(byte) for byte in data), reader.flush()]


@given(st.text())
def test_the_pieces_of_any_text_are_that_text(text: str) -> None:
    found = pieces(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode())
    assert "".join(found) == text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=BROKEN)))
def test_no_piece_has_half_a_character(text: str) -> None:
    assert not any(BROKEN in piece for piece in pieces(text.encode()))


def test_a_character_is_told_with_its_last_byte() -> None:
    assert pieces("a€b".encode()) == ["a", "", "", "€", "b", ""]


@pytest.mark.parametrize("end", [1, 2, 3])
def test_a_character_that_the_end_cuts_in_half_is_left_out(end: int) -> None:
    assert "".join(pieces(b"ok" + "\U0001f600".encode()[:end])) == "ok"


@given(st.binary(max_size=200))
def test_bytes_that_are_no_text_are_told_as_a_decoder_writes_them(data: bytes) -> None:
    whole, found = data.decode("utf-8", "replace"), "".join(pieces(data))
    assert whole.startswith(found)
    assert set(whole[len(found) :]) <= {BROKEN}


@given(st.binary(max_size=200))
def test_broken_bytes_wait_only_for_a_while(data: bytes) -> None:
    reader = Detokenizer(ByteTokenizer())
    told = 0
    for place, byte in enumerate(data):
        told += len(reader.push(byte))
        whole = data[: place + 1].decode("utf-8", "replace")
        assert told >= len(whole) - PENDING_MAX


def test_a_tokenizer_whose_words_depend_on_their_place_is_read_right() -> None:
    reader = Detokenizer(MarkTokenizer())  # type: ignore[arg-type]  # it takes any list
    assert [reader.push(one) for one in (1, 2, 3)] == ["w1", " w2", " w3"]
    assert reader.flush() == ""


def test_a_vocabulary_whose_tokens_cut_characters_is_read_right() -> None:
    text = "Grüße aus 東京, \U0001f600\U0001f600 and naïve café, ẞ and 한국어. " * 3
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    # So few merges that most characters beyond ASCII are cut, somewhere.
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([text], trainer)
    ids = library.encode(text).ids
    assert any(BROKEN in library.decode([one]) for one in ids)
    reader = Detokenizer(library)
    found = [*(reader.push(one) for one in ids), reader.flush()]
    assert "".join(found) == text
    assert not any(BROKEN in piece for piece in found)


def test_tokens_without_text_are_forgotten_in_time() -> None:
    seen: list[int] = []

    class Silent:
        def decode(self, ids: list[int]) -> str:
            seen.append(len(ids))
            return ""

    reader = Detokenizer(Silent())  # type: ignore[arg-type]  # it takes any list
    assert [reader.push(1) for _ in range(20 * PENDING_MAX)] == [""] * 20 * PENDING_MAX
    assert max(seen) <= 2 * PENDING_MAX


def cut(text: str, stops: tuple[str, ...], sizes: list[int]) -> tuple[str, str | None]:
    """Return the text up to a stop, told in pieces of `sizes`, and which stop it was."""
    finder = StopFinder(stops)
    told, place = "", 0
    for size in [*sizes, len(text)]:
        told += finder.push(text[place : place + size])
        place += size
        if finder.found is not None:
            return told, finder.found
    return told + finder.flush(), None


def right_cut(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Return the same, letter by letter: the first end of any stop counts, then the longest."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    st.lists(st.integers(1, 6), max_size=20),
)
def test_where_a_text_stops_does_not_depend_on_its_pieces(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    assert cut(text, tuple(stops), sizes) == right_cut(text, tuple(stops))


def test_what_may_be_the_beginning_of_a_stop_is_held_back_and_told_when_it_was_none() -> None:
    finder = StopFinder(("END",))
    assert [finder.push(one) for one in ("a E", "N", "d", "EN")] == ["a ", "", "ENd", ""]
    assert finder.found is None
    assert finder.flush() == "EN"


def test_without_stops_nothing_is_held_back() -> None:
    finder = StopFinder(())
    assert finder.push("abc") == "abc"
    assert finder.flush() == ""
