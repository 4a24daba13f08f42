"""Lock and unlock."""

from __future__ import annotations

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import DecLockRef, IncLockRef
from radixtide.actors.messages import Lock
from radixtide.actors.state import State
from radixtide.components.api import DecLockRefResult
from radixtide.configs.errors import ReceiptError


def inc_lock_ref(state: State, p: IncLockRef) -> Conversation:
    """Protect the path to a node, and issue a receipt."""
    node = state.resolve(p.node)
    records: list[object] = []
    if node.parent is not None:
        records = yield state.all(Lock(node))
    return state.issue(node, records, None)


def dec_lock_ref(state: State, p: DecLockRef) -> Conversation:
    """Undo exactly what a receipt stands for."""
    receipt = p.receipt
    held = state.live(receipt)
    if held.rid is not None:
        raise ReceiptError(
            f"receipt {receipt.id} belongs to request {held.rid!r}; it is released when that "
            "request finishes or is aborted"
        )
    node = held.node
    if node.parent is None:
        del state.receipts[receipt.id]
        return DecLockRefResult(dict.fromkeys(state.names, 0))
    moved = yield state.unlock(node, held.records)
    del state.receipts[receipt.id]
    if len(moved) == 1:
        return DecLockRefResult({state.full.name: moved[0]})
    return DecLockRefResult(dict(zip(state.names, moved, strict=True)))
