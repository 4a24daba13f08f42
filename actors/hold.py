"""A lock for the length of a block."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from radixtide.components.api import LockReceipt, NodeHandle

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache


class Hold:
    """``async with cache.hold(match) as receipt``: locked inside, released at the end."""

    __slots__ = ("_cache", "_node", "_receipt")

    def __init__(self, cache: UnifiedRadixCache, node: NodeHandle) -> None:
        self._cache = cache
        self._node = node
        self._receipt: LockReceipt | None = None

    async def __aenter__(self) -> LockReceipt:
        """Lock the node. Raises StaleNode when it is gone."""
        self._receipt = receipt = await self._cache.inc_lock_ref(self._node)
        return receipt

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Post the release; nothing is awaited."""
        receipt, self._receipt = self._receipt, None
        if receipt is not None:
            self._cache.post_release(receipt)
