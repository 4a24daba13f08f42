"""What fits into so much memory: tokens and states of each pool on each tier."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import msgspec

from radixtide.configs.errors import ConfigError, InvalidInput
from radixtide.configs.host import bytes_per_slot, host_slots, slots_per_page
from radixtide.configs.loader import load_config
from radixtide.configs.schema import CacheConfig
from radixtide.configs.sections import installed_components
from radixtide.configs.tier_rules import device_pools, least_host_slots

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "pb": 10**15,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "pib": 2**50,
}
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str, what: str) -> int:
    """Return the bytes that `text` names: ``40GiB``, ``16 GB``, ``1.5TiB``, ``1048576``.

    Raises :class:`InvalidInput`, which names `what`, for anything else.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidInput(
            f"{what} {text}: no amount of memory; write a number and a unit: 40GiB, 16GB, 2TiB"
        )
    return round(float(match[1]) * unit)


def show_bytes(size: float) -> str:
    """Return `size` as people write it, in binary units: ``40 GiB``, ``1.5 TiB``, ``512 B``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:,.4g} PiB"


SERVER: Final = "serve.toml"
"""The preset of the server, which is more than a cache."""


def find_config(name: str) -> CacheConfig:
    """Return the config in the file `name`, or the preset of that name.

    Raises :class:`ConfigError` where there is neither, or the file is wrong.
    """
    own = installed_components()
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return load_config(path, components=own)
    presets = sorted(
        entry.name.removesuffix(".toml")
        for entry in files("radixtide.configs").iterdir()
        if entry.name.endswith(".toml") and entry.name != SERVER
    )
    if name not in presets:
        raise ConfigError(
            f"--config {name}: neither a file nor a preset; presets: {', '.join(presets)}"
        )
    with as_file(files("radixtide.configs") / f"{name}.toml") as shipped:
        return load_config(shipped, components=own)


class PoolPlan(msgspec.Struct, frozen=True):
    """One pool: ``bytes_each`` a slot, and how many slots each tier holds.

    ``kind``: what a slot is, ``token`` or ``state``. A tier that is not there holds None.
    """

    name: str
    kind: str
    bytes_each: int
    device: int
    host: int | None = None
    storage: int | None = None

    def slots(self, tier: str) -> int | None:
        """Return the slots on the tier of that name."""
        slots: int | None = getattr(self, tier)
        return slots


class Plan(msgspec.Struct, frozen=True):
    """What each tier holds.

    ``memory``: bytes of each tier that the cache may use, by name, from the fastest on.
    ``weights``: bytes of the device that it may not.
    """

    config: CacheConfig
    memory: dict[str, int]
    weights: int
    pools: tuple[PoolPlan, ...]

    @property
    def tiers(self) -> tuple[str, ...]:
        """Names of the tiers that there are."""
        return tuple(self.memory)

    def blocks(self, tier: str, block: int, factor: float = 1.0) -> int:
        """Return the blocks of `block` tokens that `factor` times the memory of `tier` holds."""
        return int((self.pools[0].slots(tier) or 0) * factor) // block

    def bytes_for(self, tier: str, blocks: int, block: int) -> int:
        """Return the memory with which `tier` holds so many blocks."""
        slots = self.pools[0].slots(tier) or 0
        return round(blocks * block * self.memory[tier] / slots) if slots else 0


def make_plan(
    config: CacheConfig, device: int, weights: int = 0, host: int = 0, storage: int = 0
) -> Plan:
    """Return what tiers of so many bytes hold for the model of `config`.

    A tier of 0 bytes is not there. Pools share a tier in the proportion in which `config` has them:
    on host and storage in that of its host pools, where it has any.

    Raises:
        InvalidInput: the weights leave no memory, or a tier does not hold what a request needs.
    """
    if device <= weights:
        raise InvalidInput(
            f"--device-memory {show_bytes(device)}: the weights, {show_bytes(weights)}, leave "
            "nothing of it to the cache"
        )
    pools = dict(device_pools(config))
    each = {name: bytes_per_slot(pool) for name, pool in pools.items()}
    on_device = {name: pool.size for name, pool in pools.items()}
    below = on_device
    if config.host is not None:
        below = {name: host_slots(config, name, size) for name, size in each.items()}
    memory = {"device": device - weights, "host": host, "storage": storage}
    memory = {tier: size for tier, size in memory.items() if size}
    shares = {
        tier: _shared(config, tier, size, on_device if tier == "device" else below, each)
        for tier, size in memory.items()
    }
    plans = tuple(
        PoolPlan(
            name,
            "state" if name == "mamba" else "token",
            each[name],
            **{tier: slots[name] for tier, slots in shares.items()},
        )
        for name in pools
    )
    return Plan(config, memory, weights, plans)


def _shared(
    config: CacheConfig, tier: str, size: int, wanted: Mapping[str, int], each: Mapping[str, int]
) -> dict[str, int]:
    """Return the slots of each pool that `size` bytes hold, in the proportion of `wanted`."""
    whole = sum(slots * each[name] for name, slots in wanted.items())
    shares: dict[str, int] = {}
    for name, slots in wanted.items():
        page, least = slots_per_page(config, name), least_host_slots(config, name)
        # Integers: sizes of tiers are beyond what a float tells exactly.
        shares[name] = size * slots // whole // page * page
        if shares[name] < least:
            raise InvalidInput(
                f"{show_bytes(size)} of {tier} memory: the share of pool {name} is "
                f"{shares[name]} slots, and it needs {least} at least"
            )
    return shares


__all__ = ("Plan", "PoolPlan", "find_config", "make_plan", "parse_bytes", "show_bytes")
