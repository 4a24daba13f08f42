"""Frames: bytes with their length and a checksum in front, so that damage is seen.

A frame is the length of its payload (u32), the payload's xxh32 (u32), both little-endian, and the
payload. A damaged or cut frame is found when it is read; nothing of it is used.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from radixtide.configs.errors import RadixtideError

HEAD: Final = struct.Struct("<II")
PAYLOAD_MAX: Final = 1 << 28
"""Most bytes in a frame. Nothing writes one near that: a length beyond it is no length."""


class FrameError(RadixtideError):
    """Bytes are not the frame that was written: damaged, cut, or never one."""


def seal(payload: bytes) -> bytes:
    """Return `payload` as a frame. Cost O(len)."""
    assert len(payload) <= PAYLOAD_MAX
    return HEAD.pack(len(payload), xxhash.xxh32_intdigest(payload)) + payload


def unseal(frame: bytes) -> bytes:
    """Return the payload of one whole frame. Cost O(len).

    Raises:
        FrameError: it is damaged, cut, or followed by something else.
    """
    if len(frame) < HEAD.size:
        raise FrameError(f"{len(frame)} bytes are no frame: its head alone has {HEAD.size}")
    length, checksum = HEAD.unpack_from(frame)
    payload = frame[HEAD.size :]
    if length != len(payload):
        raise FrameError(f"a frame of {length} bytes has {len(payload)}")
    if xxhash.xxh32_intdigest(payload) != checksum:
        raise FrameError(f"a frame of {length} bytes is damaged: its checksum is another")
    return payload


__all__ = ("FrameError", "seal", "unseal")
