"""Messages as bytes: what a journal keeps of them, and what a fault can damage.

Every message, reply and parameter object of the cache has a form in plain data: maps, lists,
numbers, text and bytes, as msgpack. It is for reading and for comparing, not for making the message
again: nodes, actors and whatever else is shared in one process go by their names.

* a Struct: a map of its fields with ``type``, its class; fields that are None are left out.
* a node: ``{"node": id, "end": depth}``; a handle of one: ``node``, ``generation``, ``epoch``.
* an array or tensor: ``{"dtype": name, "data": bytes}`` in little-endian order, with ``shape``
  unless it has one dimension.
* a key: ``{"tokens": bytes, "units": n}`` and what there is of ``extra_key``, ``salt``, ``bigram``.
  A salt is a tenant's secret: of it there is a digest only. The URL of a store has no password.
* a request: ``{"request": rid}``, its lengths, rows and slots. Its tokens are not repeated.
* an error: ``{"error": class, "text": words}``. A set: a sorted list.
* an actor: ``{"actor": name}``. Anything else: ``{"object": class}``.

Equal runs give equal bytes: no address, wall time, hash order or number that counts the caches of a
process gets in.
"""

from __future__ import annotations

import enum
import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final

import msgspec
import numpy as np
import torch

from radixtide.actors.cell import Cell
from radixtide.components.api import ActorStats, LockReceipt, NodeHandle
from radixtide.components.request import Request
from radixtide.configs.schema import StorageConfig
from radixtide.simulation.frames import FrameError, seal, unseal
from radixtide.tiers.holdings import Holding
from radixtide.tree.key import RadixKey
from radixtide.tree.lru import Link
from radixtide.tree.node import Node

Plainer = Callable[[Any, int], Any]
"""Makes plain data of a value; the number is that of the cache that receipts are counted from."""

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_USER: Final = re.compile(r"(?<=:)//[^/@]*@")
"""Name and password in a URL."""
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


def encode(message: Any, *, base_cache: int = 0) -> bytes:
    """Return `message` as a frame: plain data as msgpack, with a checksum in front.

    Any message, reply, parameter or result of the cache, or a list or dict of them. `base_cache`:
    the number that receipts of caches are counted from, so that what a process did before does not
    show. Cost O(size).
    """
    return seal(pack(message, base_cache))


def decode(frame: bytes) -> Any:
    """Return the plain data of a frame that :func:`encode` made.

    Raises:
        FrameError: the frame is damaged, cut, or holds no msgpack.
    """
    return unpack(unseal(frame))


def pack(message: Any, base_cache: int = 0) -> bytes:
    """Return `message` as msgpack, without a frame around it."""
    plain = as_plain(message, base_cache)
    try:
        return _pack(plain)
    except (OverflowError, UnicodeEncodeError):
        return _pack(_within_msgpack(plain))


def unpack(payload: bytes | msgspec.Raw) -> Any:
    """Return the plain data of msgpack. Raises FrameError where it is none."""
    try:
        return _unpack(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(f"a payload of {len(bytes(payload))} bytes: {error}") from None


def as_plain(value: Any, base_cache: int = 0) -> Any:
    """Return `value` as plain data, as this module's docstring says."""
    kind = value.__class__
    if kind in _AS_IS:
        return value
    return (_PLAINERS.get(kind) or _learn(kind))(value, base_cache)


def clean_text(text: str) -> str:
    """Return `text` without addresses of objects, which no two runs share, as valid UTF-8."""
    if " at 0x" in text:
        text = _ADDRESS.sub("", text)
    return text if text.isascii() else _utf8(text)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


# -- kinds of values ------------------------------------------------------------------


def _same(value: Any, base: int) -> Any:
    return value


def _list(value: Any, base: int) -> list[Any]:
    plainers = _PLAINERS
    plain = []
    for one in value:
        kind = one.__class__
        if kind not in _AS_IS:
            one = (plainers.get(kind) or _learn(kind))(one, base)
        plain.append(one)
    return plain


def _dict(value: Mapping[Any, Any], base: int) -> dict[Any, Any]:
    # In the order in which it was made: where that differs between runs, the run did.
    return {_key(key): as_plain(one, base) for key, one in value.items()}


def _key(key: Any) -> Any:
    if key.__class__ in _AS_IS:
        return key
    if isinstance(key, Node):
        return key.id
    return clean_text(str(key))


def _set(value: Any, base: int) -> list[Any]:
    return sorted(_list(value, base), key=_pack)


def _array(value: Any, base: int) -> dict[str, Any]:
    if value.dtype.hasobject:
        return {"list": _list(value.tolist(), base)}
    if sys.byteorder != "little":  # pragma: no cover  # no such machine runs PyTorch today
        value = value.astype(value.dtype.newbyteorder("<"))
    plain = {"dtype": value.dtype.name, "data": value.tobytes()}
    if value.ndim != 1:
        plain["shape"] = list(value.shape)
    return plain


def _tensor(value: torch.Tensor, base: int) -> dict[str, Any]:
    value = value.detach().cpu()
    if value.dtype in _NO_NUMPY:
        # As bytes: numpy has no such number formats.
        flat = value.reshape(-1).clone(memory_format=torch.contiguous_format)
        raw = flat.view(torch.uint8).numpy().tobytes()
    else:
        raw = value.numpy().tobytes()
    plain = {"dtype": str(value.dtype).removeprefix("torch."), "data": raw}
    if value.ndim != 1:
        plain["shape"] = list(value.shape)
    return plain


_NO_NUMPY: Final = frozenset(
    getattr(torch, name)
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
)


def _slice(value: slice, base: int) -> dict[str, Any]:
    return {"slice": [value.start, value.stop]}


def _number(value: Any, base: int) -> Any:
    return value.item()


def _enum(value: enum.Enum, base: int) -> Any:
    return as_plain(value.value, base)


def _text(value: Any, base: int) -> str:
    return clean_text(str(value))


def _raw(value: Any, base: int) -> bytes:
    return bytes(value)


def _error(value: BaseException, base: int) -> dict[str, Any]:
    return {"error": type(value).__name__, "text": clean_text(str(value))}


def _node(value: Node, base: int) -> dict[str, Any]:
    return {"node": value.id, "end": value.end}


def _handle(value: NodeHandle, base: int) -> dict[str, Any]:
    return {"node": value.id, "generation": value.generation, "epoch": value.epoch}


def _receipt(value: LockReceipt, base: int) -> dict[str, Any]:
    return {"receipt": value.id, "of": as_plain(value.node, base), "cache": value.cache - base}


@lru_cache(maxsize=1024)
def _salt(salt: str) -> bytes:
    return hashlib.sha256(salt.encode()).digest()[:8]


def _radix_key(value: RadixKey, base: int) -> dict[str, Any]:
    plain: dict[str, Any] = {"tokens": value.raw, "units": value.units}
    if value.extra_key is not None:
        plain["extra_key"] = value.extra_key
    if value.cache_salt is not None:
        plain["salt"] = _salt(value.cache_salt)
    if value.is_bigram:
        plain["bigram"] = True
    return plain


_OF_REQUEST: Final = (
    "priority",
    "req_pool_idx",
    "kv_committed_len",
    "cache_protected_len",
    "mamba_pool_idx",
    "mamba_ping_pong",
    "mamba_next_track",
    "mamba_last_track_seqlen",
    "mamba_prev_track_seqlen",
    "swa_evicted_seqlen",
    "counted_len",
)


def _request(value: Request, base: int) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "request": value.rid,
        "input": len(value.origin_input_ids),
        "output": len(value.output_ids),
    }
    for name in _OF_REQUEST:
        field = getattr(value, name)
        if field is not None:
            plain[name] = as_plain(field, base)
    if value.lock is not None:
        plain["lock"] = as_plain(value.lock, base)
    return plain


def _holding(value: Holding, base: int) -> dict[str, Any]:
    slots = _array(value.slots(), base)
    return {"holder": value.holder, "used": value.used, "slots": slots}


def _actor(value: Cell, base: int) -> dict[str, Any]:
    return {"actor": value.name}


_TIMES_OF_ACTORS: Final = frozenset(
    ("wait_mean_s", "wait_max_s", "handling_mean_s", "handling_max_s")
)


def _actor_stats(value: ActorStats, base: int) -> dict[str, Any]:
    # Wall times differ from run to run; they are not what happened.
    plain: dict[str, Any] = {"type": "ActorStats"}
    for name in value.__struct_fields__:
        if name not in _TIMES_OF_ACTORS:
            plain[name] = getattr(value, name)
    return plain


def _storage(value: StorageConfig, base: int) -> dict[str, Any]:
    plain: dict[str, Any] = _of_storage(value, base)
    plain["url"] = _USER.sub("//***@", value.url)
    return plain


def _named(value: Any, base: int) -> dict[str, Any]:
    return {"object": value.__class__.__name__}


def _struct(kind: type[msgspec.Struct]) -> Plainer:
    fields = kind.__struct_fields__
    name = kind.__name__

    def plainer(value: Any, base: int) -> dict[str, Any]:
        plain: dict[str, Any] = {"type": name}
        for field in fields:
            one = getattr(value, field)
            if one is None:
                continue
            kind = one.__class__
            if kind not in _AS_IS:
                one = (_PLAINERS.get(kind) or _learn(kind))(one, base)
            plain[field] = one
        return plain

    return plainer


_of_storage: Final = _struct(StorageConfig)

_AS_IS: Final[frozenset[type]] = frozenset((int, str, bytes, bool, float, type(None)))
_KINDS: Final[tuple[tuple[Any, Plainer], ...]] = (
    (Node, _node),
    (NodeHandle, _handle),
    (LockReceipt, _receipt),
    (Request, _request),
    (RadixKey, _radix_key),
    (ActorStats, _actor_stats),
    (StorageConfig, _storage),
    # Its neighbours would lead round the whole list.
    (Link, _named),
    (Holding, _holding),
    (Cell, _actor),
    (np.ndarray, _array),
    (np.generic, _number),
    (torch.Tensor, _tensor),
    (enum.Enum, _enum),
    (BaseException, _error),
    ((list, tuple, range), _list),
    (slice, _slice),
    (Mapping, _dict),
    ((set, frozenset), _set),
    ((bytearray, memoryview, bytes), _raw),
    ((str, PurePath, torch.device, torch.dtype), _text),
)
"""What a class is, in the order in which that is asked."""

_PLAINERS: Final[dict[type, Plainer]] = dict.fromkeys(_AS_IS, _same)
"""What makes plain data of each class that was met: looked up once a value, found out once."""


def _learn(kind: type) -> Plainer:
    found = [plainer for kinds, plainer in _KINDS if issubclass(kind, kinds)]
    if found:
        plainer = found[0]
    else:
        plainer = _struct(kind) if issubclass(kind, msgspec.Struct) else _named
    _PLAINERS[kind] = plainer
    return plainer


def _within_msgpack(plain: Any) -> Any:
    """Return plain data with what msgpack has no room for (big numbers, half characters) as text.

    Only what a caller gives can be so.
    """
    if isinstance(plain, int):
        return plain if _INT_MIN <= plain <= _INT_MAX else str(plain)
    if isinstance(plain, str):
        return _utf8(plain)
    if isinstance(plain, list):
        return [_within_msgpack(one) for one in plain]
    if isinstance(plain, dict):
        return {_within_msgpack(key): _within_msgpack(one) for key, one in plain.items()}
    return plain


__all__ = ("FrameError", "as_plain", "clean_text", "decode", "encode", "pack", "unpack")
