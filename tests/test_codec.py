"""Messages as bytes: all of them can be written, nothing accidental gets in, damage is seen."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
import torch

import radixtide.actors
from radixtide import RadixKey, Request
from radixtide.actors.calls import Call
from radixtide.actors.coordinator import OPERATIONS
from radixtide.actors.messages import Apply, Opening, Plan
from radixtide.actors.op_tiers import SetStorage
from radixtide.actors.system import Ping
from radixtide.actors.tier_messages import Report, Told
from radixtide.components.api import (
    ActorStats,
    LockReceipt,
    MatchPrefixParams,
    NodeHandle,
)
from radixtide.components.insertion import Insertion
from radixtide.components.outcomes import Census
from radixtide.configs.errors import StaleNode
from radixtide.configs.schema import StorageConfig
from radixtide.simulation.case import draw_case
from radixtide.simulation.codec import FrameError, decode, encode
from radixtide.simulation.frames import seal
from radixtide.simulation.journal import plain as read_plain
from radixtide.simulation.journal import read_journal
from radixtide.simulation.journal_records import Handled, Sent
from radixtide.simulation.plan import FaultPlan
from radixtide.simulation.run import run_case
from radixtide.tiers.copy_engine import LayerGate
from radixtide.tiers.holdings import Holding
from radixtide.tree.node import ComponentData, Node
from radixtide.tree.radix_tree import Walk
from support.tier_config import SETS

BASES = (Plan, Apply, Opening, Call, Told, Report)


def plain(value: Any) -> Any:
    return decode(encode(value))


def below(kind: type) -> Iterator[type]:
    one: type
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


@lru_cache(maxsize=1)
def message_types() -> tuple[type[msgspec.Struct], ...]:
    """Every class of a message: subclasses of the bases, and what an operation takes."""
    for module in pkgutil.iter_modules(radixtide.actors.__path__):
        importlib.import_module(f"radixtide.actors.{module.name}")
    found: set[Any] = {one for base in BASES for one in below(base)} - set(BASES)
    found |= {*OPERATIONS, Ping}
    own = [one for one in found if one.__module__.startswith("radixtide.")]
    return tuple(sorted(own, key=lambda one: one.__qualname__))


def sample_node() -> Node:
    record = ComponentData(value=np.arange(3, dtype=np.int32))
    node = Node(b"12345678", 12, {}, None, 1, 0, record, (record,), 7, b"1234", 0, 0, 0)
    # Each leads to the other, as in a tree: who follows them does not come back.
    record.node = node
    node.parent = node
    return node


def sample(hint: Any) -> Any:
    """Return a value of a type, with something in everything that can hold something."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return sample(next(one for one in args if one is not NoneType))
    if origin is Literal:
        return args[0]
    if origin is list:
        return [sample(args[0])]
    if origin is set:
        return {sample(args[0])}
    if origin is dict:
        return {sample(args[0]): sample(args[1])}
    if origin is tuple:
        return tuple(sample(one) for one in args if one is not Ellipsis)
    if origin is np.ndarray:
        return np.array([3, 1, 2], dtype=np.int64)
    if hint is Any:
        return object()
    if isinstance(hint, type) and hint in SAMPLES:
        return SAMPLES[hint]()
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return filled(hint)
    return hint()


def filled(kind: type[msgspec.Struct]) -> Any:
    hints = get_type_hints(kind)
    return kind(**{name: sample(hints[name]) for name in kind.__struct_fields__})


SAMPLES: dict[type, Any] = {
    Node: sample_node,
    RadixKey: lambda: RadixKey([1, 2, 3], "adapter"),
    Request: lambda: Request("r1", [1, 2], [3]),
    torch.Tensor: lambda: torch.tensor([4, 5]),
    Holding: lambda: Holding(3),
    int: lambda: 41,
    float: lambda: 0.5,
    bool: lambda: True,
    str: lambda: "words",
    bytes: lambda: b"\0\xff",
}


@pytest.mark.parametrize("kind", message_types(), ids=lambda kind: kind.__name__)
def test_every_message_can_be_written_with_all_that_it_says(kind: type[msgspec.Struct]) -> None:
    data = plain(filled(kind))
    assert data.pop("type") == kind.__name__
    # Of an untyped field the sample is an object of no meaning, and has a name all the same.
    assert list(data) == list(kind.__struct_fields__)
    hints = get_type_hints(kind)
    for name, value in data.items():
        assert ("object" in str(value)) <= ("Any" in str(hints[name]) or hints[name] is Insertion)


def test_the_list_of_messages_is_whole() -> None:
    names = {kind.__name__ for kind in message_types()}
    assert len(names) > 80
    assert names >= {"Validate", "StartCopy", "CopyDone", "StepApply", "LoadBackCall", "Ping"}


def objects(data: Any) -> Iterator[str]:
    """Yield the names of what has no form in plain data."""
    if isinstance(data, dict):
        if data.keys() == {"object"}:
            yield data["object"]
        for one in data.values():
            yield from objects(one)
    elif isinstance(data, list):
        for one in data:
            yield from objects(one)


@pytest.mark.slow
def test_what_a_cache_really_sends_is_written() -> None:
    sent: set[str] = set()
    nameless: set[str] = set()
    for seed in (1, 2):
        case = draw_case(seed, 250, FaultPlan.none(), SETS[-1], "storage")
        file = BytesIO()
        run_case(case, journal=file)
        file.seek(0)
        for record in read_journal(file):
            if isinstance(record, Sent):
                data = read_plain(record.message)
                assert data["type"] == record.kind
                sent.add(record.kind)
                nameless.update(objects(data))
            elif isinstance(record, Handled):
                nameless.update(objects(read_plain(record.reply)))
    kinds = {kind.__name__ for kind in message_types()}
    assert sent <= kinds
    assert len(kinds - sent) <= 25, sorted(kinds - sent)
    # Only what is shared in one process, and has no contents to tell.
    assert nameless <= {"LayerGate", "StorageJobs", "Future", "SimulatedFuture", "Event"}


# -- values -----------------------------------------------------------------------------


def test_arrays_keep_their_numbers() -> None:
    for array in (
        np.arange(5, dtype=np.int64),
        np.arange(5, dtype=np.int32)[::2],
        np.array([2**64 - 1], dtype=np.uint64),
        np.zeros(0, dtype=np.int64),
        np.array([[1.5, 2.5]], dtype=np.float32),
    ):
        data = plain(array)
        again = np.frombuffer(data["data"], dtype=data["dtype"])
        assert again.reshape(data.get("shape", -1)).tolist() == array.tolist()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6),
        torch.arange(6)[::2],
        torch.tensor([7]).expand(1),
        torch.arange(6).reshape(2, 3).T,
        torch.zeros(0, dtype=torch.int64),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_tensors_keep_their_bytes(tensor: torch.Tensor) -> None:
    data = plain(tensor)
    whole = tensor.reshape(-1).clone()
    assert data["dtype"] == str(tensor.dtype).removeprefix("torch.")
    assert data["data"] == bytes(whole.view(torch.uint8).tolist())
    assert data.get("shape", [len(tensor)]) == list(tensor.shape)


def test_a_node_is_its_number_and_depth_and_leads_nowhere() -> None:
    node = sample_node()
    assert plain(node) == {"node": 7, "end": 12}
    assert plain({node: 1, "nodes": [node]}) == {7: 1, "nodes": [{"node": 7, "end": 12}]}
    assert plain(node.primary) == {"object": "ComponentData"}


def test_a_walk_is_written_whole() -> None:
    node = sample_node()
    data = plain(Walk(RadixKey([1, 2]), node, 0, 2, [node, node], node, 2))
    assert data["path"] == [{"node": 7, "end": 12}] * 2
    assert data["key"]["tokens"] == RadixKey([1, 2]).raw


def test_sets_are_in_order_whatever_their_hashes() -> None:
    words = [f"component{number}" for number in range(50)]
    assert plain(set(words)) == sorted(words, key=len)
    assert encode(set(words)) == encode(frozenset(reversed(words)))
    assert plain({3, 1, 2}) == [1, 2, 3]


def test_receipts_count_from_the_first_cache_of_a_run() -> None:
    first = LockReceipt(3, NodeHandle(1, 0, 0), 40)
    later = LockReceipt(3, NodeHandle(1, 0, 0), 95)
    assert encode(first, base_cache=40) == encode(later, base_cache=95)
    assert decode(encode(later, base_cache=94))["cache"] == 1
    inside = [encode(MatchPrefixParams(RadixKey([1]), _locked(one))) for one in (first, later)]
    assert inside[0] != inside[1]


def _locked(receipt: LockReceipt) -> Request:
    req = Request("r1", [1])
    req.lock = receipt
    return req


def test_a_request_says_who_it_is_and_not_what_was_asked() -> None:
    req = Request("r7", [11, 12, 13], [14], extra_key="adapter", mamba_ping_pong=[4, 5])
    data = plain(req)
    assert (data["request"], data["input"], data["output"]) == ("r7", 3, 1)
    assert data["mamba_ping_pong"] == [4, 5]
    assert "adapter" not in str(data)


def test_a_salt_stays_secret_and_still_tells_tenants_apart() -> None:
    frames = [encode(RadixKey([1, 2], "adapter", salt)) for salt in ("pepper", "thyme", None)]
    assert len(set(frames)) == 3
    assert all(b"adapter" in frame for frame in frames)
    assert not any(b"pepper" in frame or b"thyme" in frame for frame in frames)
    assert frames[0] == encode(RadixKey([1, 2], "adapter", "pepper"))


def test_what_differs_from_run_to_run_is_left_out() -> None:
    class Odd:
        pass

    odd = [Odd(), Odd()]
    errors = [StaleNode(f"node of {one!r} is gone") for one in odd]
    assert str(errors[0]) != str(errors[1])
    assert encode(errors[0]) == encode(errors[1])
    assert plain(errors[0])["error"] == "StaleNode"
    assert encode([Odd(), threading.Event()]) == encode([Odd(), threading.Event()])
    assert plain(LayerGate(2)) == {"object": "LayerGate"}
    stats = filled(ActorStats)
    assert encode(stats) == encode(msgspec.structs.replace(stats, wait_mean_s=9.0))
    assert encode(stats) != encode(msgspec.structs.replace(stats, handled=9))


def test_a_store_is_written_without_the_password_to_it() -> None:
    message = SetStorage(StorageConfig(url="redis://user:pepper@host:6379/0"), None)
    assert plain(message)["config"]["url"] == "redis://***@host:6379/0"
    assert plain(StorageConfig(url="lmdb:/data/a@b"))["url"] == "lmdb:/data/a@b"


def test_holdings_and_censuses_are_written() -> None:
    holding = Holding(3)
    holding.extend(np.array([8, 9], dtype=np.int64), 1)
    census = Census(np.zeros(2, dtype=np.int32), {4: np.zeros(1, dtype=np.int32)}, {3: holding})
    data = plain(census)
    assert data["holders"][3]["used"] == 1
    assert np.frombuffer(data["holders"][3]["slots"]["data"], dtype=np.int64).tolist() == [8, 9]
    assert list(data["nodes"]) == [4]


def test_what_a_caller_made_up_is_written_too() -> None:
    assert plain([2**70, -(2**70), {"half": "\ud800"}]) == [
        str(2**70),
        str(-(2**70)),
        {"half": "\\ud800"},
    ]
    assert plain({(1, 2): "key"}) == {"(1, 2)": "key"}
    assert plain(float("inf")) == float("inf")


# -- damage -----------------------------------------------------------------------------


def test_every_flipped_bit_is_found() -> None:
    frame = encode(MatchPrefixParams(RadixKey([1, 2, 3]), lock=True))
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            decode(bytes(damaged))


def test_every_cut_is_found() -> None:
    frame = encode({"a": [1, 2, 3]})
    for end in range(len(frame)):
        with pytest.raises(FrameError):
            decode(frame[:end])
    with pytest.raises(FrameError):
        decode(frame + b"\0")


def test_bytes_that_are_no_msgpack_are_refused() -> None:
    with pytest.raises(FrameError):
        decode(seal(b"\xc1"))
