"""The tokenizer of models with random weights, and the real one's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtide.serving.tokens import ByteTokenizer
from support.serving_models import REAL, served


@given(st.text())
def test_any_text_comes_back_from_its_bytes(text: str) -> None:
    tokenizer = ByteTokenizer()
    whole = text.encode("utf-8", errors="replace").decode()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == whole
    assert b"".join(tokenizer.token_bytes(one) for one in ids) == whole.encode()


@given(st.lists(st.integers(0, 259)))
def test_any_tokens_are_some_text(ids: list[int]) -> None:
    plain = bytes(one for one in ids if one < 256)
    assert ByteTokenizer().decode(ids) == plain.decode("utf-8", errors="replace")


def test_marks_are_no_text() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([97, 256, 257, 258, 259, 98]) == "ab"
    assert tokenizer.token_bytes(256) == b""


def test_a_chat_has_marks_about_each_turn() -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.chat([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}])
    assert tokenizer.decode(ids) == "system\nxuser\nyassistant\n"
    assert [one for one in ids if one > 255] == [257, 258, 257, 258, 257]
    longer = tokenizer.chat([{"role": "system", "content": "x"}, {"role": "user", "content": "z"}])
    assert ids[:11] == longer[:11]


@pytest.mark.slow
def test_the_real_model_has_its_tokenizer_and_template() -> None:
    model = served(REAL).model
    tokenizer = model.tokenizer
    assert (model.vocabulary, model.max_context, [*model.eos_ids]) == (49152, 8192, [2])
    text = "naïve 日本, ok?\n\tx"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(one) for one in ids) == text.encode()
    chat = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert chat[0] == 1
    assert tokenizer.decode(chat).endswith("user\nhi\nassistant\n")
    assert tokenizer.decode([2, *tokenizer.encode("a")]) == "a"
