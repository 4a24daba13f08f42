"""Lock and unlock."""

from __future__ import annotations

from typing import Any

from radixtide.actors.actor import Round
from radixtide.actors.calls import DecLockRef, IncLockRef
from radixtide.actors.messages import Lock, Unlock
from radixtide.actors.state import State
from radixtide.components.api import DecLockRefResult, LockReceipt, NodeHandle
from radixtide.configs.errors import ReceiptError
from radixtide.tree.node import Node


def inc_lock_ref(state: State, p: IncLockRef) -> Round | LockReceipt:
    """Protect the path to a node, and issue a receipt."""
    node = state.resolve(p.node)
    if node.parent is None:
        return _locked(state, (p.node, node), [])
    return Round(state.cells, Lock(node), _locked, state, (p.node, node))


def _locked(state: State, of: tuple[NodeHandle, Node], records: list[Any]) -> LockReceipt:
    return state.issue(of[1], of[0], records)


def dec_lock_ref(state: State, p: DecLockRef) -> Round | DecLockRefResult:
    """Undo exactly what a receipt stands for."""
    receipt = p.receipt
    held = state.receipts.get(receipt.id)
    if held is None or held.receipt is not receipt:
        held = state.live(receipt)
    if held.rid is not None:
        raise ReceiptError(
            f"receipt {receipt.id} belongs to request {held.rid!r}; it is released when that "
            "request finishes or is aborted"
        )
    node = held.node
    if node.parent is None:
        return _released(state, receipt.id, [0] * len(state.names))
    return Round(state.cells, Unlock(node, held.records), _released, state, receipt.id)


def _released(state: State, number: int, moved: list[Any]) -> DecLockRefResult:
    del state.receipts[number]
    if len(moved) == 1:
        return DecLockRefResult({state.names[0]: moved[0]})
    return DecLockRefResult(dict(zip(state.names, moved, strict=True)))
