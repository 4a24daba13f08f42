"""What was torn, altered or exchanged in a store is a miss, counted, and removed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.stores import Rig, head_of, page_bytes, page_keys, targets
from support.stores import rig as rig

Damage = Callable[[bytes, bytes], bytes]


def flip(place: int) -> Damage:
    def damage(frame: bytes, _: bytes) -> bytes:
        changed = bytearray(frame)
        changed[place] ^= 0x10
        return bytes(changed)

    return damage


DAMAGES: dict[str, Damage] = {
    "one bit of the page": flip(-777),
    "one bit of its digest": flip(25),
    "one bit of its parent's name": flip(70),
    "torn in the page": lambda frame, _: frame[:-1000],
    "torn in the head": lambda frame, _: frame[:40],
    "torn after the head": lambda frame, _: frame[: head_of(frame)],
    "zeros at the end": lambda frame, _: frame[:-512] + bytes(512),
    "all zeros": lambda frame, _: bytes(len(frame)),
    "another page's value": lambda _, other: other,
    "another page under its own head": lambda frame, other: (
        frame[: head_of(frame)] + other[head_of(other) :]
    ),
    "longer": lambda frame, _: frame + bytes(100),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_a_damaged_page_is_a_miss_that_is_counted_and_removed(
    rig: Rig, damage: Damage
) -> None:
    keys, pages, out = page_keys(4)[1:], page_bytes(3), targets(3)
    store = await rig.opened()
    await store.put_from(keys, pages)
    await rig.done(store)
    one, other = rig.read(keys[1]), rig.read(keys[2])
    assert one is not None
    assert other is not None
    rig.write(keys[1], damage(one, other))

    store = await rig.opened()
    before = store.stats()
    assert await store.get_into(keys, out) == [True, False, True]
    assert out == [pages[0], targets(1)[0], pages[2]]
    assert await store.exists(keys) == [True, False, True]
    assert store.stats().bad - before.bad == 1
    assert store.stats().misses == before.misses

    # It can be stored again, and is right then.
    assert await store.put_from(keys[1:2], pages[1:2]) == [True]
    assert await store.get_into(keys, out) == [True] * 3
    assert out == pages
    await rig.done(store)


async def test_a_page_that_was_put_back_is_read_again(rig: Rig) -> None:
    keys, pages, out = page_keys(1), page_bytes(1), targets(1)
    store = await rig.opened()
    await store.put_from(keys, pages)
    await rig.done(store)
    frame = rig.read(keys[0])
    assert frame is not None
    rig.write(keys[0], frame)
    store = await rig.opened()
    assert await store.get_into(keys, out) == [True]
    assert out == pages
    await rig.done(store)
