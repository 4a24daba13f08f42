"""A page in a store: whatever is wrong with it is found when it is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtide.tiers.digests import digest_of
from radixtide.tiers.storage import PageKey
from radixtide.tiers.storage.frame import (
    HEADER,
    MAGIC,
    BadFrame,
    decode,
    encode,
    encode_into,
    read_head,
)
from support.stores import page_bytes, page_keys

KEY = PageKey("aa-1", "bb-1", "kv")


def read(frame: bytes, key: PageKey = KEY, length: int = 100) -> tuple[bytes, int]:
    payload, digest = decode(key.name, memoryview(frame), length)
    return bytes(payload), digest


def frame_of(key: PageKey = KEY, digest: int | None = 77) -> bytes:
    return bytes(encode(key, page_bytes(1, 100)[0], digest))


@given(
    payload=st.binary(max_size=300),
    digest=st.integers(0, 2**64 - 1),
    parent=st.none() | st.text("0123456789abcdef-", min_size=1, max_size=160),
)
def test_what_is_packed_is_unpacked(payload: bytes, digest: int, parent: str | None) -> None:
    key = PageKey("name", parent, "kv")
    frame = bytes(encode(key, memoryview(payload), digest))
    assert read(frame, key, len(payload)) == (payload, digest)
    assert read_head(frame) == (parent, len(payload), digest)


def test_every_changed_byte_is_found() -> None:
    good = frame_of()
    assert read(good)[1] == 77
    for place in range(len(good)):
        changed = bytearray(good)
        changed[place] ^= 1 << (place % 8)
        with pytest.raises(BadFrame):
            read(bytes(changed))


def test_every_cut_is_found_and_so_is_what_was_appended() -> None:
    good = frame_of()
    for size in range(len(good)):
        with pytest.raises(BadFrame):
            read(good[:size])
    with pytest.raises(BadFrame):
        read(good + b"\0")


def test_a_page_under_another_name_is_found() -> None:
    for other in (PageKey("aa-2", "bb-1", "kv"), PageKey("aa-1", "bb-1", "state")):
        with pytest.raises(BadFrame, match="another page"):
            read(frame_of(), other)


def test_a_page_of_another_length_is_found() -> None:
    for length in (0, 99, 101):
        with pytest.raises(BadFrame, match="wanted"):
            read(frame_of(), length=length)


def test_the_halves_of_two_pages_do_not_pass() -> None:
    one, other = frame_of(), bytes(encode(KEY, page_bytes(1, 100, seed=1)[0], 77))
    for cut in range(HEADER + 5, len(one) - 1, 7):
        with pytest.raises(BadFrame):
            read(one[:cut] + other[cut:])


def test_another_format_is_none_of_ours() -> None:
    good = frame_of()
    for wrong in (b"", b"\0" * 500, b"x" * 500, MAGIC, MAGIC + b"\2\0" + good[10:]):
        with pytest.raises(BadFrame):
            read(wrong)


def test_the_parent_is_told_without_its_payload() -> None:
    good = frame_of()
    assert read_head(good[: HEADER + 4]).parent == "bb-1"
    assert read_head(frame_of(PageKey("aa", None, "kv"))).parent is None


def test_packing_into_memory_says_how_much_it_took() -> None:
    room = bytearray(b"\x55" * 400)
    page = page_bytes(1, 100)[0]
    size = encode_into(memoryview(room), KEY, page, 77)
    assert bytes(room[:size]) == frame_of()
    assert set(room[size:]) == {0x55}


def test_a_digest_that_was_not_given_is_that_of_the_copy_engine() -> None:
    page = np.arange(100, dtype=np.uint8)
    assert read(bytes(encode(KEY, page.data, None)))[1] == digest_of(page)


def test_names_of_pages_differ_in_every_part() -> None:
    keys = page_keys(3, ("kv", "state")) + page_keys(3, ("kv", "state"), line=1)
    assert len({key.name for key in keys}) == len(keys)
