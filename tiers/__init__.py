"""Memory: device pools, slot allocators, the request table."""

from radixtide.tiers.holdings import Holding as Holding
from radixtide.tiers.kv_pool import TokenToKVPool as TokenToKVPool
from radixtide.tiers.request_pool import ReqToTokenPool as ReqToTokenPool
from radixtide.tiers.slots import SlotAllocator as SlotAllocator

__all__ = ("Holding", "ReqToTokenPool", "SlotAllocator", "TokenToKVPool")
