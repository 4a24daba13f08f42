"""Checks of what callers give, before it becomes a message.

A wrong type must be refused at the door: inside an actor it would be a crash. Cheap on the way that
is right: a few identity tests a call.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from radixtide.components.api import (
    BUILT_IN,
    AllocateParams,
    EvictParams,
    InsertParams,
    LockReceipt,
    MatchPrefixParams,
    NodeHandle,
    SlotInput,
    Slots,
)
from radixtide.components.request import Request
from radixtide.configs.errors import InvalidInput, InvalidRequest, SlotError
from radixtide.tree.key import RadixKey

INT64 = np.dtype(np.int64)
INT64_MAX = 2**63 - 1


def expect(value: object, kind: type, name: str) -> None:
    """Raise InvalidInput unless `value` is a `kind` (a bool is no int here)."""
    if value.__class__ is kind:
        return
    if isinstance(value, kind) and not isinstance(value, bool):
        return
    raise InvalidInput(f"{name} must be {kind.__name__}, not {type(value).__name__}")


def as_count(value: object, name: str) -> int:
    """Return an integer in [0, 2**63), also from NumPy's. Raises InvalidInput."""
    if value.__class__ is not int:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise InvalidInput(f"{name} must be int, not {type(value).__name__}")
        value = int(value)
    assert isinstance(value, int)
    if value < 0:
        raise InvalidInput(f"{name} is negative: {value}")
    if value > INT64_MAX:
        raise InvalidInput(f"{name} {value} does not fit 64 bits")
    return value


def as_seconds(value: object, name: str) -> float:
    """Return a finite number of seconds, not negative. Raises InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not math.isfinite(value) or value < 0:
        raise InvalidInput(f"{name} must be finite and not negative, not {value!r}")
    return float(value)


def check_match(params: MatchPrefixParams) -> MatchPrefixParams:
    """Check the types in `params`."""
    if params.__class__ is not MatchPrefixParams:
        expect(params, MatchPrefixParams, "params")
    if params.key.__class__ is not RadixKey:
        expect(params.key, RadixKey, "key")
    if params.req is not None:
        check_request(params.req)
    return params


def check_insert(params: InsertParams) -> InsertParams:
    """Check the types in `params`; slots are checked where they are used."""
    if (
        params.__class__ is InsertParams
        and params.key.__class__ is RadixKey
        and params.prev_prefix_len.__class__ is int
        and 0 <= params.prev_prefix_len <= INT64_MAX
        and params.priority.__class__ is int
        and -INT64_MAX <= params.priority <= INT64_MAX
        and params.component_evicted_seqlens.__class__ is dict
        and not params.component_evicted_seqlens
    ):
        return params
    return _check_odd_insert(params)


def _check_odd_insert(params: InsertParams) -> InsertParams:
    expect(params, InsertParams, "params")
    expect(params.key, RadixKey, "key")
    prev = as_count(params.prev_prefix_len, "prev_prefix_len")
    if params.priority.__class__ is not int or abs(params.priority) > INT64_MAX:
        raise InvalidInput(f"priority must be an int of 64 bits, not {params.priority!r}")
    lengths = params.component_evicted_seqlens
    if lengths or lengths.__class__ is not dict:
        expect(lengths, dict, "component_evicted_seqlens")
        for name, length in lengths.items():
            expect(name, str, "a name in component_evicted_seqlens")
            as_count(length, f"component_evicted_seqlens[{name!r}]")
    if prev is params.prev_prefix_len:
        return params
    return msgspec.structs.replace(params, prev_prefix_len=prev)


def check_allocate(params: AllocateParams) -> AllocateParams:
    """Check the types in `params`."""
    expect(params, AllocateParams, "params")
    tokens = as_count(params.num_tokens, "num_tokens")
    if params.swa_num_tokens is not None:
        some = as_count(params.swa_num_tokens, "swa_num_tokens")
        if some > tokens:
            raise InvalidInput(
                f"swa_num_tokens {some} is more than num_tokens {tokens}: a slot of the window's "
                "pool goes with a token's own; leave it out for as many as there are tokens"
            )
    as_count(params.mamba_num, "mamba_num")
    if params.req is not None:
        check_request(params.req)
    if tokens is params.num_tokens:
        return params
    return msgspec.structs.replace(params, num_tokens=tokens)


def check_evict(params: EvictParams) -> EvictParams:
    """Check the types in `params`."""
    expect(params, EvictParams, "params")
    tokens = as_count(params.num_tokens, "num_tokens")
    as_count(params.swa_num_tokens, "swa_num_tokens")
    as_count(params.mamba_num, "mamba_num")
    others = params.others
    if others or others.__class__ is not dict:
        others = _check_others(others)
    elif tokens is params.num_tokens:
        return params
    return msgspec.structs.replace(params, num_tokens=tokens, others=others)


def _check_others(others: dict[str, int]) -> dict[str, int]:
    expect(others, dict, "others")
    checked = {}
    for name, slots in others.items():
        expect(name, str, "a name in others")
        if name in BUILT_IN:
            raise InvalidInput(f"others[{name!r}]: {name} has a field of its own; use that")
        checked[name] = as_count(slots, f"others[{name!r}]")
    return checked


def check_handle(node: NodeHandle) -> None:
    """Check the types in a handle: one may have been decoded from elsewhere."""
    expect(node, NodeHandle, "node")
    if not (node.id.__class__ is node.generation.__class__ is node.epoch.__class__ is int):
        raise InvalidInput(f"a node handle has three integers, not {node}")


def check_receipt(receipt: LockReceipt) -> None:
    """Check the types in a receipt."""
    expect(receipt, LockReceipt, "receipt")
    if not (receipt.id.__class__ is receipt.cache.__class__ is int):
        raise InvalidInput(f"a lock receipt has integers, not {receipt}")
    check_handle(receipt.node)


def check_request(req: Request) -> None:
    """Check the types of a request's fields, whoever wrote them. Raises InvalidRequest."""
    expect(req, Request, "req")
    if req.rid.__class__ is not str:
        raise InvalidRequest(f"rid must be a string, not {req.rid!r}")
    for name in ("priority", "cache_protected_len", "counted_len"):
        value = getattr(req, name)
        if value.__class__ is not int or abs(value) > INT64_MAX:
            raise InvalidRequest(f"request {req.rid!r}: {name} must be an int, not {value!r}")
    for name in ("req_pool_idx", "kv_committed_len"):
        value = getattr(req, name)
        if isinstance(value, np.integer):
            value = int(value)
            setattr(req, name, value)
        if value is not None and (value.__class__ is not int or abs(value) > INT64_MAX):
            raise InvalidRequest(
                f"request {req.rid!r}: {name} must be an int or None, not {value!r}"
            )
    if not isinstance(req.output_ids, list):
        raise InvalidRequest(
            f"request {req.rid!r}: output_ids must be a list, not {type(req.output_ids).__name__}"
        )
    head = req.origin_input_ids
    if not isinstance(head, (list, tuple, array, np.ndarray, torch.Tensor)) or (
        isinstance(head, (np.ndarray, torch.Tensor)) and head.ndim != 1
    ):
        raise InvalidRequest(
            f"request {req.rid!r}: origin_input_ids must be a list, tuple, array, ndarray or "
            f"tensor of one dimension, not {type(head).__name__}"
        )
    for name in ("extra_key", "cache_salt"):
        value = getattr(req, name)
        if value is not None and value.__class__ is not str:
            raise InvalidRequest(f"request {req.rid!r}: {name} must be a string or None")


def as_slots(indices: SlotInput | Sequence[int]) -> Slots:
    """Return `indices` as an int64 array, without a copy where it is one.

    Raises:
        SlotError: not a tensor or array of int64 with one dimension on the CPU.
    """
    if indices.__class__ is np.ndarray and indices.dtype is INT64 and indices.ndim == 1:
        return indices
    if isinstance(indices, torch.Tensor):
        if not indices.is_cpu:
            raise SlotError(f"slot indices are on {indices.device}; pass indices.cpu()")
        if indices.dtype != torch.int64:
            raise SlotError(f"slot indices must be int64, not {indices.dtype}")
        return _one_dimensional(indices.numpy())
    if not isinstance(indices, np.ndarray):
        raise SlotError(
            f"slot indices must be an int64 tensor or array, not {type(indices).__name__}"
        )
    if indices.dtype != np.int64:
        raise SlotError(f"slot indices must be int64, not {indices.dtype}")
    return _one_dimensional(indices)


def as_one_slot(name: str, given: SlotInput) -> int:
    """Return the only slot in `given`, of pool `name`.

    Raises:
        SlotError: as :func:`as_slots`.
        InvalidInput: there is not exactly one.
    """
    slots = as_slots(given)
    if slots.size != 1:
        raise InvalidInput(
            f"{len(slots)} slots of pool {name} came with an insert; give one, the state at its end"
        )
    return slots.item(0)


def _one_dimensional(indices: Slots) -> Slots:
    if indices.ndim != 1:
        raise SlotError(f"slot indices must have one dimension, not shape {indices.shape}")
    return indices
