"""Lock and unlock."""

from __future__ import annotations

from typing import Any

from radixtide.actors.actor import Conversation, Round
from radixtide.actors.calls import DecLockRef, DecWindowLock, IncLockRef
from radixtide.actors.messages import GetSizes, Lock, LockSplit, Unlock
from radixtide.actors.state import LiveReceipt, State
from radixtide.components.api import DecLockRefResult, LockReceipt, NodeHandle
from radixtide.components.outcomes import RELEASED
from radixtide.configs.errors import ReceiptError
from radixtide.tree.node import Node


def inc_lock_ref(state: State, p: IncLockRef) -> Round | LockReceipt | Conversation:
    """Protect the path to a node, and issue a receipt."""
    node = state.resolve(p.node)
    if node.parent is None:
        return _locked(state, (p.node, node), [])
    if state.reaches and state.lacks_border(node):
        return _split_and_lock(state, p.node, node)
    return Round(state.cells, Lock(node), _locked, state, (p.node, node))


def _split_and_lock(state: State, handle: NodeHandle, node: Node) -> Conversation:
    """Make the borders that the lock needs first, so that it pins no more than a window."""
    # A plan first: nothing is split for a component that does not answer.
    yield state.all(GetSizes())
    records = yield state.all(LockSplit(node, state.make_borders(node)))
    return state.issue(node, handle, records)


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


def dec_window_lock(state: State, p: DecWindowLock) -> Round | DecLockRefResult:
    """Give up the windows of a receipt, and what ranks no higher; once."""
    held = state.live(p.receipt)
    early = state.early
    node = held.node
    if node.parent is None or not early or held.records[early[0]] is RELEASED:
        return DecLockRefResult(dict.fromkeys(state.names, 0))
    cells = [state.cells[index] for index in early]
    return Round(cells, Unlock(node, held.records), _windows_released, state, held)


def _windows_released(state: State, held: LiveReceipt, moved: list[Any]) -> DecLockRefResult:
    sizes = dict.fromkeys(state.names, 0)
    for index, size in zip(state.early, moved, strict=True):
        held.records[index] = RELEASED
        sizes[state.names[index]] = size
    return DecLockRefResult(sizes)


def _released(state: State, number: int, moved: list[Any]) -> DecLockRefResult:
    del state.receipts[number]
    if len(moved) == 1:
        return DecLockRefResult({state.names[0]: moved[0]})
    return DecLockRefResult(dict(zip(state.names, moved, strict=True)))
