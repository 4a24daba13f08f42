"""Keys: token sequences in a namespace, compared as memory.

A :class:`RadixKey` owns one immutable buffer of little 64-bit integers. Everything the tree does
with it is a comparison or a slice of that buffer; no per-token Python code runs after the key is
built.

**Units.** A plain key of N tokens has N units of one token. A *bigram view* (for EAGLE speculative
decoding) has N - 1 units ``(t[i], t[i+1])``. The buffer is not doubled for that: units ``[a, b)``
of a bigram key are tokens ``[a, b + 1)``, so a piece carries one token of look-ahead and comparing
pieces compares units. All lengths outside this file are in units.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import numpy as np
import numpy.typing as npt

from radixtide.configs.errors import InvalidKey

if TYPE_CHECKING:
    import torch

TOKEN_BYTES: Final = 8
"""Bytes of one token in a key's buffer (int64, machine order)."""

NAMESPACE_TAG: Final = b"radixtide-namespace-v1"

TokenIds: TypeAlias = Union[Sequence[int], "array[int]", npt.NDArray[Any], "torch.Tensor"]
"""What a key can be made of."""


def _frame(part: str | None) -> bytes:
    """Encode an optional string so that no two different inputs give equal bytes."""
    if part is None:
        return b"\0"
    try:
        raw = part.encode()
    except UnicodeEncodeError as error:
        raise InvalidKey(
            f"a name in a key must be text that UTF-8 can write: character {error.start} of "
            f"{len(part)} is half of a surrogate pair"
        ) from None
    return b"\1" + len(raw).to_bytes(8, "little") + raw


def namespace_bytes(extra_key: str | None, cache_salt: str | None) -> bytes:
    """Return the namespace as framed bytes; empty for the default namespace.

    The framing (a presence byte, then length, then UTF-8) keeps an adapter that is named like
    another tenant's salt in a namespace of its own.
    """
    if extra_key is None and cache_salt is None:
        return b""
    return NAMESPACE_TAG + _frame(extra_key) + _frame(cache_salt)


def namespace_parts(namespace: bytes) -> tuple[str | None, str | None]:
    """Return what :func:`namespace_bytes` made `namespace` of."""
    parts: list[str | None] = []
    at = len(NAMESPACE_TAG)
    while at < len(namespace):
        if namespace[at] == 0:
            parts.append(None)
            at += 1
        else:
            begin = at + 9
            at = begin + int.from_bytes(namespace[at + 1 : begin], "little")
            parts.append(namespace[begin:at].decode())
    return (parts[0], parts[1]) if parts else (None, None)


def token_bytes(token_ids: TokenIds) -> bytes:
    """Return `token_ids` as a buffer of int64, or raise :class:`InvalidKey`.

    Cost O(K) at memory speed for arrays and tensors, one pass of the interpreter for lists.
    """
    # A tensor can only exist where torch is loaded; the tree itself does not need it.
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and isinstance(token_ids, tensor):
        if token_ids.device.type != "cpu":
            raise InvalidKey(
                f"token ids are on {token_ids.device}; keys are compared on the CPU: "
                "pass token_ids.cpu()"
            )
        token_ids = token_ids.detach().numpy()
    if isinstance(token_ids, (list, tuple)):
        try:
            token_ids = np.frombuffer(array("q", token_ids), dtype=np.int64)
        except (TypeError, OverflowError) as error:
            raise InvalidKey(f"token ids must be integers in [0, 2**63): {error}") from None
    elif isinstance(token_ids, array):
        token_ids = np.frombuffer(token_ids, dtype=token_ids.typecode)
    elif not isinstance(token_ids, np.ndarray):
        raise InvalidKey(
            f"token ids must be a list, tuple, array, ndarray or tensor of integers, "
            f"not {type(token_ids).__name__}"
        )
    tokens: npt.NDArray[Any] = token_ids
    if tokens.ndim != 1:
        raise InvalidKey(f"token ids must have one dimension, not shape {tokens.shape}")
    if tokens.size == 0:
        return b""
    if tokens.dtype.kind not in "iu":
        raise InvalidKey(f"token ids must be integers, not {tokens.dtype}")
    if tokens.dtype == np.uint64 and int(tokens.max()) >= 2**63:
        raise InvalidKey(f"token id {int(tokens.max())} is not below 2**63")
    if int(tokens.min()) < 0:
        at = int(np.argmax(tokens < 0))
        raise InvalidKey(f"token id {int(tokens[at])} at position {at} is negative")
    return tokens.astype(np.int64, copy=False).tobytes()


class RadixKey:
    """A token sequence in a namespace: the key of every cache call.

    Args:
        token_ids: K token ids in ``[0, 2**63)``: list, tuple, ``array``, int ndarray or CPU tensor
            of one dimension. Copied.
        extra_key: adapter, weight version or tenant; another value is another namespace.
        cache_salt: secret of a tenant; another value is another namespace.
        is_bigram: view the N tokens as N - 1 pairs.

    Raises:
        InvalidKey: token ids are negative, too large, no integers or of the wrong shape.
    """

    __slots__ = ("cache_salt", "extra_key", "is_bigram", "lookahead", "namespace", "raw", "units")

    raw: bytes
    """The tokens, 8 bytes each."""
    units: int
    """Length of the key in units (see the module's docstring)."""
    lookahead: int
    """Bytes that a piece carries past its last unit: 8 for bigrams, else 0."""
    namespace: bytes

    def __init__(
        self,
        token_ids: TokenIds,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        is_bigram: bool = False,
    ) -> None:
        for name, part in (("extra_key", extra_key), ("cache_salt", cache_salt)):
            if part is not None and not isinstance(part, str):
                raise InvalidKey(f"{name} must be a string or None, not {type(part).__name__}")
        self.extra_key = extra_key
        self.cache_salt = cache_salt
        self.namespace = namespace_bytes(extra_key, cache_salt)
        self.is_bigram = bool(is_bigram)
        self._set(token_bytes(token_ids))

    def _set(self, raw: bytes) -> None:
        self.raw = raw
        tokens = len(raw) // TOKEN_BYTES
        if self.is_bigram:
            self.units = max(tokens - 1, 0)
            self.lookahead = TOKEN_BYTES
        else:
            self.units = tokens
            self.lookahead = 0

    def __len__(self) -> int:
        """Return the length in units."""
        return self.units

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RadixKey):
            return NotImplemented
        return (
            self.raw == other.raw
            and self.namespace == other.namespace
            and self.is_bigram == other.is_bigram
        )

    def __hash__(self) -> int:
        return hash((self.raw, self.namespace, self.is_bigram))

    def __repr__(self) -> str:
        tokens = self.token_ids
        shown = ", ".join(map(str, tokens[:6])) + (", ..." if len(tokens) > 6 else "")
        where = "" if self.extra_key is None else f", extra_key={self.extra_key!r}"
        # A salt is a tenant's secret: say that there is one, not which.
        where += "" if self.cache_salt is None else ", cache_salt=<hidden>"
        return f"RadixKey([{shown}], units={self.units}{where})"

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """The tokens as a read-only int64 view, shape (N,)."""
        return np.frombuffer(self.raw, dtype=np.int64)

    def aligned(self, page_size: int) -> int:
        """Return the longest whole-page length of this key, in units."""
        return self.units - self.units % page_size

    def prefix(self, units: int) -> RadixKey:
        """Return the key of the first `units` units (one copy of those bytes)."""
        if not 0 <= units <= self.units:
            raise InvalidKey(f"a prefix of {units} units of a key of {self.units}")
        if units == self.units:
            return self
        short = RadixKey.__new__(RadixKey)
        short.extra_key = self.extra_key
        short.cache_salt = self.cache_salt
        short.namespace = self.namespace
        short.is_bigram = self.is_bigram
        short._set(self.raw[: units * TOKEN_BYTES + self.lookahead] if units else b"")
        return short

    def piece(self, start: int, end: int) -> bytes:
        """Return the buffer of units ``[start, end)`` with its look-ahead."""
        return self.raw[start * TOKEN_BYTES : end * TOKEN_BYTES + self.lookahead]


def common_units(raw: bytes, offset: int, limit: int, piece: bytes, lookahead: int) -> int:
    """Return how many units of `piece` equal those of `raw` from unit `offset` up to unit `limit`.

    Args:
        raw: a key's buffer.
        offset, limit: the units of `raw` that take part.
        piece: a node's buffer, look-ahead included.

    Cost O(length) at memory speed: one vectorised comparison, only at the node that diverges.
    """
    start = offset * TOKEN_BYTES
    span = min(len(piece), limit * TOKEN_BYTES + lookahead - start)
    if span <= lookahead:
        return 0
    mine = np.frombuffer(raw, dtype=np.int64, count=span // TOKEN_BYTES, offset=start)
    theirs = np.frombuffer(piece, dtype=np.int64, count=span // TOKEN_BYTES)
    differ = mine != theirs
    first = int(differ.argmax())
    tokens = first if differ[first] else span // TOKEN_BYTES
    return max(tokens - lookahead // TOKEN_BYTES, 0)


__all__ = (
    "TOKEN_BYTES",
    "RadixKey",
    "TokenIds",
    "common_units",
    "namespace_bytes",
    "namespace_parts",
    "token_bytes",
)
