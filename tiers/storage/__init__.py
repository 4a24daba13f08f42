"""Stores of pages below the host's memory: one interface, several kinds behind it."""

from radixtide.tiers.storage.base import PageKey as PageKey
from radixtide.tiers.storage.base import StorageBackend as StorageBackend
from radixtide.tiers.storage.base import StorageClosed as StorageClosed
from radixtide.tiers.storage.base import StorageFailed as StorageFailed
from radixtide.tiers.storage.base import StoreStats as StoreStats
from radixtide.tiers.storage.breaker import Guarded as Guarded
from radixtide.tiers.storage.open import guarded_storage as guarded_storage
from radixtide.tiers.storage.open import open_storage as open_storage

__all__ = (
    "Guarded",
    "PageKey",
    "StorageBackend",
    "StorageClosed",
    "StorageFailed",
    "StoreStats",
    "guarded_storage",
    "open_storage",
)
