"""The public calls as data: parameters, results, handles and receipts.

Every object here is a msgspec Struct. Parameter objects are also the messages that the coordinator
receives, so each carries a tag and can be encoded. Lengths are in units of the tree (tokens, or
pairs for bigram trees); counts of slots are in slots of the pool that is named.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from radixtide.components.request import Request
from radixtide.tiers.storage.base import StoreStats
from radixtide.tree.key import RadixKey

Slots = npt.NDArray[np.int64]
"""Slot indices: int64, one dimension, owned by whoever holds the array."""

StoredSlots = npt.NDArray[np.int32]
"""Slot indices as a node keeps them: a pool has less than 2**31 slots."""

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of positions, ascending."""

SlotInput = torch.Tensor | npt.NDArray[Any]
"""Slot indices as a caller gives them: int64, one dimension, on the CPU. Copied, never aliased."""


class ComponentType:
    """Names of the built-in components. A plug-in uses a name of its own."""

    FULL: Final = "full"
    SWA: Final = "swa"
    MAMBA: Final = "mamba"


BUILT_IN: Final = (ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA)
"""Components with fields of their own in parameters and results."""


BRANCHING: Final = (ComponentType.SWA, ComponentType.MAMBA)
"""Components of which a MatchResult tells the branching length, in the order of its fields."""

CARRIER: Final = ComponentType.FULL
"""The first component of every cache: a node exists while it has data of this one."""


class EvictLayer(enum.Enum):
    """Which copies of a node's data an eviction takes."""

    DEVICE = "device"
    HOST = "host"
    ALL = "all"


class MissReason(enum.StrEnum):
    """Why a match is not longer. Each is a string too.

    ``COMPLETE``: nothing is missing. ``UNALIGNED_TAIL``: all whole pages matched; the rest is
    shorter than a page. ``NEVER_STORED``: the next page was not seen, or its eviction is forgotten.
    ``EVICTED``: the next page was cached and evicted. The others belong to components
    and tiers; ``COMPONENT``: one of a plug-in that has no reason of its own cut the match.
    """

    # By value and in C: a reason is counted at every match.
    __hash__ = str.__hash__

    COMPLETE = "complete"
    UNALIGNED_TAIL = "unaligned_tail"
    NEVER_STORED = "never_stored"
    EVICTED = "evicted"
    WINDOW_GAP = "window_gap"
    NO_STATE = "no_state"
    NO_SLOT = "no_slot"
    COMPONENT = "component"
    ON_HOST = "on_host"
    IN_STORAGE = "in_storage"


class NodeHandle(msgspec.Struct, frozen=True, gc=False):
    """An opaque name of a tree node.

    It stays valid until the node is deleted, its device slots leave or change, or the tree is
    reset; after that, calls that take it raise :class:`~radixtide.configs.errors.StaleNode`.
    """

    id: int
    generation: int
    epoch: int


class LockReceipt(msgspec.Struct, frozen=True, gc=False):
    """Proof of one lock; ``dec_lock_ref`` takes it back exactly once.

    What each component counted is kept by the cache under ``id``, so a receipt can not be altered
    to release more than it locked.
    """

    id: int
    node: NodeHandle
    cache: int


class MatchPrefixParams(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Find the longest cached prefix of ``key``.

    ``lock``: lock the device match in the same step. With ``req`` the request then owns the receipt
    and its ``prefix_indices``, ``last_node``, ``cache_protected_len`` and ``lock`` are set.
    ``cow_mamba``: give the request a private copy of the matched state.
    """

    key: RadixKey
    req: Request | None = None
    cow_mamba: bool = False
    lock: bool = False


class MatchResult(msgspec.Struct, frozen=True, gc=False):
    """What is cached of a key.

    ``device_indices``: int64 CPU tensor, shape (device match length,); the caller may write to it.
    ``full_kv_hit_length``: length of the Full match on any tier, whatever other components say.
    ``full_miss_reason``: where another component cut the match: why that one was not longer; where
    the host has more of it: why the match with that is not longer.
    ``component_hit_lengths``: there, how long each of the other components alone would have let it
    be, by name. ``swa_branching_seqlen``, ``mamba_branching_seqlen``: where the match was cut, the
    length up to which state of these would be worth computing again.
    ``miss_length``: units of the key (whole pages and tail) that the device match does not cover.
    ``receipt``: the lock, when one was asked for.
    ``host_hit_length``: units that a load back would add; ``swa_host_hit_length``,
    ``mamba_host_hit_length``: slots of those pools that it takes for it. ``last_host_node``,
    ``best_match_node``: where the match ends with that. ``key``: what was matched, where there is a
    host tier.
    """

    device_indices: torch.Tensor
    last_device_node: NodeHandle
    last_host_node: NodeHandle
    best_match_node: NodeHandle
    miss_reason: MissReason
    full_kv_hit_length: int
    miss_length: int = 0
    host_hit_length: int = 0
    swa_host_hit_length: int = 0
    mamba_host_hit_length: int = 0
    swa_branching_seqlen: int | None = None
    mamba_branching_seqlen: int | None = None
    full_miss_reason: MissReason | None = None
    component_hit_lengths: dict[str, int] = {}
    receipt: LockReceipt | None = None
    key: RadixKey | None = None


class InsertParams(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Give the slots of ``key`` to the tree.

    ``value``: the device slots of the key's units, shape (n,), n at least the page-aligned length;
    units below ``prev_prefix_len`` are the tree's own already and are not looked at. Slots from
    there on must be held by the caller. Slots past ``InsertResult.inserted_len`` stay the caller's,
    a ``mamba_value`` too where that is less than the key. ``ready``: when the state is written: a
    CUDA event, a future, or None for now.
    """

    key: RadixKey
    value: SlotInput
    mamba_value: SlotInput | None = None
    prev_prefix_len: int = 0
    component_evicted_seqlens: dict[str, int] = {}
    priority: int = 0
    ready: Any = None

    def given(self) -> dict[str, SlotInput] | None:
        """Return the slots of other pools that come with the insert, by component."""
        return None if self.mamba_value is None else {ComponentType.MAMBA: self.mamba_value}


class InsertResult(msgspec.Struct, frozen=True, gc=False):
    """What became of the caller's slots.

    ``prefix_len``: units that were in the tree before. ``adopted`` and ``duplicate`` are half-open
    ranges that partition ``[prev_prefix_len, inserted_len)``: the tree owns the former; the latter
    were cached already and are free again (the tree's own slots serve those units).
    """

    prefix_len: int
    inserted_len: int
    last_device_node: NodeHandle
    mamba_exist: bool = False
    adopted: Ranges = ()
    duplicate: Ranges = ()
    component_adopted: dict[str, Ranges] = {}

    @staticmethod
    def state_existed(existed: dict[str, bool]) -> bool:
        """Return what ``mamba_exist`` says, given which component had its state already."""
        return existed.get(ComponentType.MAMBA, False)


class EvictParams(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Free at least this much, where that much is evictable.

    ``others``: slots by the name of a component that is not built in.
    """

    num_tokens: int = 0
    swa_num_tokens: int = 0
    mamba_num: int = 0
    others: dict[str, int] = {}

    def targets(self) -> dict[str, int]:
        """Return the slots to free, by component."""
        targets = {
            ComponentType.FULL: self.num_tokens,
            ComponentType.SWA: self.swa_num_tokens,
            ComponentType.MAMBA: self.mamba_num,
        }
        return {**targets, **self.others} if self.others else targets


class EvictResult(msgspec.Struct, frozen=True, gc=False):
    """What was freed on the device, per component.

    ``others``: slots by the name of a component that is not built in, where it is more than 0.
    """

    num_tokens_evicted: int = 0
    swa_num_tokens_evicted: int = 0
    mamba_num_evicted: int = 0
    others: dict[str, int] = {}

    @classmethod
    def of(cls, freed: dict[str, int]) -> EvictResult:
        """Return the result of slots freed, by component."""
        return cls(
            freed.get(ComponentType.FULL, 0),
            freed.get(ComponentType.SWA, 0),
            freed.get(ComponentType.MAMBA, 0),
            {name: slots for name, slots in freed.items() if slots and name not in BUILT_IN},
        )


class AllocateParams(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Take slots, evicting as needed; all pools or none.

    ``num_tokens`` is rounded up to whole pages. With ``req`` the room left in the request's last
    page is used first, the slots are recorded as the request's, and its row (if it has one) is
    extended.
    """

    num_tokens: int = 0
    swa_num_tokens: int | None = None
    mamba_num: int = 0
    req: Request | None = None

    def wanted(self, components: Sequence[str]) -> dict[str, int]:
        """Return the slots wanted, by component; those of a cache that has `components`."""
        swa = self.swa_num_tokens
        if swa is None:
            swa = self.num_tokens if ComponentType.SWA in components else 0
        return {
            ComponentType.FULL: self.num_tokens,
            ComponentType.SWA: swa,
            ComponentType.MAMBA: self.mamba_num,
        }


class AllocateResult(msgspec.Struct, frozen=True, gc=False):
    """Slots that the caller now holds.

    ``indices``: int64 CPU tensor. The first ``num_tokens`` are those asked for, in order; what
    follows is the rest of the last page, which the caller holds too. With ``req`` that rest is
    room which the request's next allocation uses first (and returns again).
    ``evicted``: what had to be evicted for it.
    """

    indices: torch.Tensor
    evicted: EvictResult
    swa_indices: torch.Tensor | None = None
    mamba_indices: torch.Tensor | None = None

    @classmethod
    def of(
        cls, indices: torch.Tensor, evicted: EvictResult, granted: dict[str, Slots]
    ) -> AllocateResult:
        """Return the result of what each pool granted, by component."""
        swa, mamba = granted.get(ComponentType.SWA), granted.get(ComponentType.MAMBA)
        return cls(
            indices,
            evicted,
            None if swa is None else torch.from_numpy(swa),
            None if mamba is None else torch.from_numpy(mamba),
        )

    def granted(self) -> dict[str, Slots]:
        """Return what each pool granted beside the first, by component."""
        parts = {ComponentType.SWA: self.swa_indices, ComponentType.MAMBA: self.mamba_indices}
        return {name: one.numpy() for name, one in parts.items() if one is not None}


class DecLockRefResult(msgspec.Struct, frozen=True, gc=False):
    """Slots that a release made evictable, per component."""

    unprotected: dict[str, int]


class CacheReqResult(msgspec.Struct, frozen=True, gc=False):
    """What ``cache_finished_req``, ``cache_unfinished_req`` or ``abort_req`` did.

    ``inserted_len``: units now in the tree; ``prefix_len``: units that were there before; of a
    request whose load failed under it none. ``freed``: Full slots given back (duplicates, tail,
    surplus). ``component_adopted``: positions of which other components took state over, by
    component.
    """

    inserted_len: int = 0
    prefix_len: int = 0
    freed: int = 0
    component_adopted: dict[str, Ranges] = {}


class PinResult(msgspec.Struct, frozen=True):
    """``pinned_len``: units of the key that are pinned. ``budget_left``: slots still pinnable."""

    pinned_len: int
    budget_left: int


class PoolStats(msgspec.Struct, frozen=True):
    """Sizes of one pool on one tier, in slots: they add up to ``size``."""

    free: int
    evictable: int
    protected: int
    held: int
    in_flight: int
    size: int


class ActorStats(msgspec.Struct, frozen=True):
    """One actor: what it did and what waits for it. Times in seconds.

    ``degraded``: it crashed too often and was set aside; the others go on without what it had.
    """

    name: str
    alive: bool
    handled: int
    failures: int
    restarts: int
    mailbox_depth: int
    mailbox_depth_max: int
    mailbox_capacity: int
    wait_mean_s: float
    wait_max_s: float
    handling_mean_s: float
    handling_max_s: float
    device_lru: int | None = None
    host_lru: int | None = None
    degraded: bool = False


class CacheStats(msgspec.Struct, frozen=True):
    """One look at the whole cache.

    ``pools[component][tier]``: sizes. ``actors[name]``: coordinator and one actor a component.
    ``receipts``: locks that live. ``requests``: requests that hold something. ``pinned``: pinned
    slots. ``counters``: totals since the start (matches, hit and missed units, evictions, misses
    by reason). ``storage``: what the storage has and did, where there is one.
    """

    pools: dict[str, dict[str, PoolStats]]
    actors: dict[str, ActorStats]
    nodes: int
    receipts: int
    requests: int
    pinned: int
    generation: int
    counters: dict[str, int]
    storage: StoreStats | None = None


class Violation(msgspec.Struct, frozen=True):
    """One thing that does not hold. ``clause``: its short name in docs/guarantees.md."""

    clause: str
    message: str


class AuditReport(msgspec.Struct, frozen=True):
    """All that ``audit()`` found wrong; empty when the cache is sound."""

    violations: tuple[Violation, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.violations
