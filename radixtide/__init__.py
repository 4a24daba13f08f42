"""Radixtide: a radix-tree prefix cache for language-model serving, built from asyncio actors.

The public names, gathered from the rooms that define them. They are loaded at first use, so that
``import radixtide`` itself is cheap (no PyTorch):

    from radixtide import MatchPrefixParams, RadixKey, UnifiedRadixCache
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from radixtide.actors.agreement import Agreement, AgreementFailed, GlooAgreement, RanksDiverged
    from radixtide.actors.cache import UnifiedRadixCache
    from radixtide.actors.tier_handles import LoadBack, Prefetch
    from radixtide.components.api import (
        ActorStats,
        AllocateParams,
        AllocateResult,
        AuditReport,
        CacheReqResult,
        CacheStats,
        ComponentType,
        DecLockRefResult,
        EvictLayer,
        EvictParams,
        EvictResult,
        InsertParams,
        InsertResult,
        LockReceipt,
        MatchPrefixParams,
        MatchResult,
        MissReason,
        NodeHandle,
        PinResult,
        PoolStats,
        Violation,
    )
    from radixtide.components.auxiliary import AuxiliaryComponent
    from radixtide.components.base import TreeComponent
    from radixtide.components.insertion import InsertCheck, Insertion, InsertPart
    from radixtide.components.picture import NodePicture, TreePicture
    from radixtide.components.registry import register_component
    from radixtide.components.request import Request
    from radixtide.configs.errors import (
        ActorError,
        ActorFailed,
        ActorStopped,
        Busy,
        CacheClosed,
        CallTimeout,
        ConfigError,
        DoubleFree,
        ForeignReceipt,
        InvalidInput,
        InvalidKey,
        InvalidRequest,
        InvariantError,
        LoadFailed,
        MailboxFull,
        NodeError,
        OutOfSlots,
        PinRefused,
        RadixtideError,
        ReceiptError,
        ReceiptReleased,
        SlotError,
        StaleNode,
        TraceError,
        UnknownNode,
    )
    from radixtide.configs.loader import load_config
    from radixtide.configs.schema import CacheConfig, HostConfig, StorageConfig
    from radixtide.configs.sections import plugin_section
    from radixtide.tiers.slots import SlotAllocator
    from radixtide.tree.key import RadixKey
    from radixtide.tree.node import Node
    from radixtide.tree.radix_tree import RadixTree

    __version__: str

__all__ = (
    "ActorError",
    "ActorFailed",
    "ActorStats",
    "ActorStopped",
    "Agreement",
    "AgreementFailed",
    "AllocateParams",
    "AllocateResult",
    "AuditReport",
    "AuxiliaryComponent",
    "Busy",
    "CacheClosed",
    "CacheConfig",
    "CacheReqResult",
    "CacheStats",
    "CallTimeout",
    "ComponentType",
    "ConfigError",
    "DecLockRefResult",
    "DoubleFree",
    "EvictLayer",
    "EvictParams",
    "EvictResult",
    "ForeignReceipt",
    "GlooAgreement",
    "HostConfig",
    "InsertCheck",
    "InsertParams",
    "InsertPart",
    "InsertResult",
    "Insertion",
    "InvalidInput",
    "InvalidKey",
    "InvalidRequest",
    "InvariantError",
    "LoadBack",
    "LoadFailed",
    "LockReceipt",
    "MailboxFull",
    "MatchPrefixParams",
    "MatchResult",
    "MissReason",
    "Node",
    "NodeError",
    "NodeHandle",
    "NodePicture",
    "OutOfSlots",
    "PinRefused",
    "PinResult",
    "PoolStats",
    "Prefetch",
    "RadixKey",
    "RadixTree",
    "RadixtideError",
    "RanksDiverged",
    "ReceiptError",
    "ReceiptReleased",
    "Request",
    "SlotAllocator",
    "SlotError",
    "StaleNode",
    "StorageConfig",
    "TraceError",
    "TreeComponent",
    "TreePicture",
    "UnifiedRadixCache",
    "UnknownNode",
    "Violation",
    "__version__",
    "load_config",
    "plugin_section",
    "register_component",
)

_ROOMS: Final = {
    "UnifiedRadixCache": "radixtide.actors.cache",
    "RadixKey": "radixtide.tree.key",
    "Request": "radixtide.components.request",
    "CacheConfig": "radixtide.configs.schema",
    "HostConfig": "radixtide.configs.schema",
    "StorageConfig": "radixtide.configs.schema",
    "LoadBack": "radixtide.actors.tier_handles",
    "Prefetch": "radixtide.actors.tier_handles",
    "Agreement": "radixtide.actors.agreement",
    "AgreementFailed": "radixtide.actors.agreement",
    "GlooAgreement": "radixtide.actors.agreement",
    "RanksDiverged": "radixtide.actors.agreement",
    "NodePicture": "radixtide.components.picture",
    "TreePicture": "radixtide.components.picture",
    "load_config": "radixtide.configs.loader",
    # For authors of components.
    "AuxiliaryComponent": "radixtide.components.auxiliary",
    "InsertCheck": "radixtide.components.insertion",
    "InsertPart": "radixtide.components.insertion",
    "Insertion": "radixtide.components.insertion",
    "Node": "radixtide.tree.node",
    "RadixTree": "radixtide.tree.radix_tree",
    "SlotAllocator": "radixtide.tiers.slots",
    "TreeComponent": "radixtide.components.base",
    "plugin_section": "radixtide.configs.sections",
    "register_component": "radixtide.components.registry",
}
"""Where a name is defined, for those outside the two rooms below."""

_SEARCHED: Final = ("radixtide.configs.errors", "radixtide.components.api")
"""Rooms that define all other names, the one that is cheap to load first."""

if not TYPE_CHECKING:  # checkers see the imports above; with this they would accept any name

    def __getattr__(name: str) -> object:
        """Load the public name `name` at its first use."""
        if name not in __all__:
            raise AttributeError(f"module 'radixtide' has no attribute {name!r}")
        from importlib import import_module, metadata

        if name == "__version__":
            value = metadata.version("radixtide")
        elif name in _ROOMS:
            value = getattr(import_module(_ROOMS[name]), name)
        else:
            value = next(
                getattr(module, name)
                for module in map(import_module, _SEARCHED)
                if hasattr(module, name)
            )
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Return the public names, loaded or not."""
        return sorted({*globals(), *__all__})
