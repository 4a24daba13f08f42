"""Memory: device pools, slot allocators, the request table."""

from radixtide.tiers.holdings import Holding as Holding
from radixtide.tiers.kv_pool import TokenToKVPool as TokenToKVPool
from radixtide.tiers.pairing import Pairing as Pairing
from radixtide.tiers.request_pool import ReqToTokenPool as ReqToTokenPool
from radixtide.tiers.slots import SlotAllocator as SlotAllocator
from radixtide.tiers.state_pool import StatePool as StatePool

__all__ = ("Holding", "Pairing", "ReqToTokenPool", "SlotAllocator", "StatePool", "TokenToKVPool")
