"""Text to token ids and back: what the engine and its server need of a tokenizer.

Models with random weights have no tokenizer of their own; :class:`ByteTokenizer` gives them one in
which each byte of UTF-8 is a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol

from radixtide.configs.errors import InvalidInput

Messages = Sequence[Mapping[str, str]]
"""A chat: each message has ``role`` and ``content``."""


class Tokenizer(Protocol):
    """What is asked of a tokenizer. Thread-safe: encoding runs in worker threads."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without any marks of begin or end."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`; special tokens are left out, broken UTF-8 becomes U+FFFD."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token, which may be a part of a character; of specials none."""
        ...

    def chat(self, messages: Messages) -> list[int]:
        """Return the ids of a chat, up to where the assistant's answer begins.

        Raises:
            InvalidInput: the model has no chat template, or it refuses these messages.
        """
        ...


END_OF_TEXT: Final = 256
TURN: Final = 257
END_OF_TURN: Final = 258
BYTE_VOCABULARY: Final = 260
"""Ids of the byte tokenizer: 256 bytes, three marks, and one that is never used."""


class ByteTokenizer:
    """Each byte of UTF-8 is a token: 256 ids, then the marks of a text's and a turn's end."""

    def encode(self, text: str) -> list[int]:  # noqa: D102  # as in Tokenizer
        return list(text.encode("utf-8", errors="replace"))

    def decode(self, ids: Sequence[int]) -> str:  # noqa: D102  # as in Tokenizer
        return bytes(one for one in ids if one < END_OF_TEXT).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:  # noqa: D102  # as in Tokenizer
        return bytes((token,)) if token < END_OF_TEXT else b""

    def chat(self, messages: Messages) -> list[int]:  # noqa: D102  # as in Tokenizer
        ids = []
        for message in messages:
            ids += [TURN, *self.encode(f"{message['role']}\n{message['content']}"), END_OF_TURN]
        return [*ids, TURN, *self.encode("assistant\n")]


_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PretrainedTokenizer:
    """The tokenizer that comes with a model, as Transformers reads it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._of_bytes = backend is not None and "ByteLevel" in str(backend.decoder)

    def encode(self, text: str) -> list[int]:  # noqa: D102  # as in Tokenizer
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:  # noqa: D102  # as in Tokenizer
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def token_bytes(self, token: int) -> bytes:  # noqa: D102  # as in Tokenizer
        if token in self._special:
            return b""
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""
        if self._of_bytes:
            return _bytes_of_letters(piece)
        byte = _BYTE_TOKEN.fullmatch(piece)
        if byte is not None:
            return bytes((int(byte[1], 16),))
        return str(piece).replace("\u2581", " ").encode()

    def chat(self, messages: Messages) -> list[int]:  # noqa: D102  # as in Tokenizer
        if not self._tokenizer.chat_template:
            raise InvalidInput(
                "this model has no chat template; ask for a completion of plain text instead"
            )
        from jinja2 import TemplateError  # noqa: PLC0415  # comes with the template, not before

        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
            )
        except TemplateError as error:
            raise InvalidInput(
                f"the model's chat template refuses these messages: {error}"
            ) from None
        return self.encode(text)


@cache
def _letters_of_bytes() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    Printable bytes of Latin-1 stand for themselves, the others for letters from U+0100 on.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    letters.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return letters


def _bytes_of_letters(piece: Iterable[str]) -> bytes:
    letters = _letters_of_bytes()
    return b"".join(bytes((letters[one],)) if one in letters else one.encode() for one in piece)
