"""How a page lies in a store: a header that says what it is, the name of its parent, the bytes.

Header, little-endian, 64 bytes: magic (8), version (2), length of the parent's name (2), unused
(4), length of the payload (8), digest of the page (8), hash of the page's own name (16), checksum
(16). The checksum is xxh3_128 over the header before it, the parent's name and the payload, so
whatever was torn, altered, cut or stored under another name is found when it is read.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import xxhash

from radixtide.tiers.storage.base import PageKey, copy_bytes

MAGIC: Final = b"\x89RDXTP\r\n"
VERSION: Final = 1
PARENT_MAX: Final = 160
"""Longest name of a parent, in bytes."""

_FIELDS: Final = struct.Struct("<8sHHIQQ16s")
_CHECKSUM: Final = 16
HEADER: Final = _FIELDS.size + _CHECKSUM
HEAD_MAX: Final = HEADER + PARENT_MAX
"""Most that stands before a payload, in bytes."""


class BadFrame(Exception):
    """What was read is not what was written under this name; says why. Never leaves this room."""


class Head(NamedTuple):
    """What stands before a payload: its parent's name, its length in bytes, the page's digest."""

    parent: str | None
    length: int
    digest: int


def seal(key: PageKey, payload: memoryview, digest: int | None) -> bytes:
    """Return the head of a page. Costs one pass over the payload, two without a digest."""
    if digest is None:
        digest = xxhash.xxh3_64_intdigest(payload)
    parent = b"" if key.parent is None else key.parent.encode("ascii")
    own = xxhash.xxh3_128_digest(key.name.encode("ascii"))
    fields = _FIELDS.pack(MAGIC, VERSION, len(parent), 0, len(payload), digest, own)
    return fields + _checksum(fields, parent, payload) + parent


def encode(key: PageKey, payload: memoryview, digest: int | None) -> bytearray:
    """Return a page as one piece of memory of our own, which nobody else changes."""
    frame = bytearray(HEADER + len(key.parent or "") + len(payload))
    encode_into(memoryview(frame), key, payload, digest)
    return frame


def encode_into(out: memoryview, key: PageKey, payload: memoryview, digest: int | None) -> int:
    """Write a page to the beginning of `out`, which has room; return how many bytes it took.

    The payload may change between the two passes over it; then the checksum tells.
    """
    head = seal(key, payload, digest)
    size = len(head) + len(payload)
    out[: len(head)] = head
    if len(payload):
        copy_bytes(out[len(head) : size], payload)
    return size


def read_head(head: bytes | memoryview) -> Head:
    """Return what a head says, of any page; BadFrame if it is none. Nothing is verified."""
    if len(head) < HEADER:
        raise BadFrame("cut short")
    magic, version, parent, _, length, digest, _ = _FIELDS.unpack_from(head)
    if magic != MAGIC or version != VERSION:
        raise BadFrame("not a page of this version")
    if parent > PARENT_MAX or len(head) < HEADER + parent:
        raise BadFrame("cut short")
    name = bytes(head[HEADER : HEADER + parent])
    if not name.isascii():
        raise BadFrame("its parent has no name")
    return Head(name.decode("ascii") or None, length, digest)


def verify(name: str, head: bytes | memoryview, payload: memoryview, length: int) -> int:
    """Return the digest of the page `name` of `length` bytes; BadFrame unless all fits."""
    told = read_head(head)
    if told.length != length or len(payload) != length:
        raise BadFrame(f"{told.length} bytes are named, {len(payload)} there, {length} wanted")
    fields = bytes(head[: _FIELDS.size])
    if fields[-16:] != xxhash.xxh3_128_digest(name.encode("ascii")):
        raise BadFrame("another page's name is on it")
    parent = (told.parent or "").encode("ascii")
    if bytes(head[_FIELDS.size : HEADER]) != _checksum(fields, parent, payload):
        raise BadFrame("its checksum is wrong")
    return told.digest


def decode(name: str, frame: memoryview, length: int) -> tuple[memoryview, int]:
    """Return payload (a view) and digest of a page that was read whole; BadFrame unless it fits."""
    told = read_head(frame)
    start = HEADER + len(told.parent or "")
    payload = frame[start:]
    return payload, verify(name, frame[:start], payload, length)


def _checksum(fields: bytes, parent: bytes, payload: memoryview) -> bytes:
    state = xxhash.xxh3_128(fields + parent)
    state.update(payload)
    return state.digest()
