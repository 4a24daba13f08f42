"""From token ids to text, piece by piece: whole characters only, and never past a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

PENDING_MAX: Final = 16
"""Tokens that may wait for the rest of a character before they are told as they are."""

HALF_MAX: Final = 3
"""Tokens over which a character that is not whole yet may spread: it lacks one byte of four."""

BROKEN: Final = "\ufffd"
"""What a decoder writes where bytes are no character (yet)."""


class Decoder(Protocol):
    """The part of a tokenizer that this file needs."""

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of `ids`."""


class Detokenizer:
    """Text of a growing sequence of tokens.

    A token may be part of a character, or read otherwise after its neighbours; so each piece is the
    difference between two readings that begin at the same token. Cost O(tokens of a piece) a token.
    """

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        # The tokens of the piece that was told last (`_told` of them), and those after it.
        self._ids: list[int] = []
        self._told = 0

    def push(self, token: int) -> str:
        """Take the next token; return the text that is certain now, which may be empty."""
        ids = self._ids
        ids.append(token)
        before, whole = self._read_text(self._told), self._read_text(len(ids))
        cut = len(ids)
        if whole == before or whole.endswith(BROKEN):
            if cut - self._told < PENDING_MAX:
                cut = self._certain(whole)
            if cut == self._told:
                return ""
        fresh = self._read_text(cut)[len(before) :]
        self._tell(cut)
        return fresh

    def flush(self) -> str:
        """Return what is left at the end, without a character that was cut in half."""
        before, whole = self._read_text(self._told), self._read_text(len(self._ids))
        self._tell(len(self._ids))
        return whole[len(before) :].rstrip(BROKEN)

    def _certain(self, whole: str) -> int:
        """Return how many tokens read the same whatever follows, where the text ends broken."""
        end = len(self._ids)
        for cut in range(end - 1, self._told, -1):
            part = self._read_text(cut)
            # Bytes that a later token can not mend any more were never a character.
            settled = not part.endswith(BROKEN) or cut <= end - HALF_MAX
            if settled and part and whole.startswith(part):
                return cut
        return self._told

    def _read_text(self, end: int) -> str:
        return self._tokenizer.decode(self._ids[:end])

    def _tell(self, cut: int) -> None:
        # The piece told last stays as context for the next; what lies before it is not needed.
        del self._ids[: self._told]
        self._told = cut - self._told


class StopFinder:
    """Looks for the first of several strings in text that comes in pieces.

    Of several, the one that ends first stops the text, wherever the pieces begin and end; of those
    that end together the longest. The text is cut before it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._waiting = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Take the next piece; return what can be told now. ``found`` says whether it ended."""
        if not self._stops:
            return text
        text = self._waiting + text
        self._waiting = ""
        hits = [
            (place + len(stop), place, stop)
            for stop in self._stops
            if (place := text.find(stop)) >= 0
        ]
        if hits:
            _, place, self.found = min(hits)
            return text[:place]
        # The end of the text may be the beginning of a stop string.
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                self._waiting = text[-length:]
                return text[:-length]
        return text

    def flush(self) -> str:
        """Return what was held back, at the end of a text without a stop string."""
        waiting, self._waiting = self._waiting, ""
        return waiting
