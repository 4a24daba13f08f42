"""What the host and storage sections of a config must be, together and beside the device pools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from radixtide.configs.host import bytes_per_slot, host_slots, slots_per_page
from radixtide.configs.reading import INTEGER_MAX, did_you_mean
from radixtide.configs.schema import (
    CacheConfig,
    HostConfig,
    KvGeometry,
    MambaPoolConfig,
    StorageConfig,
)

Pool: TypeAlias = KvGeometry | MambaPoolConfig

STORES: Final = {
    "lmdb": "lmdb:PATH",
    "file": "file:PATH",
    "memory": "memory:",
    "s3": "s3://BUCKET/PREFIX",
    "redis": "redis://HOST:PORT/DB",
    "mooncake": "mooncake://HOST:PORT",
}
"""How the address of each kind of store is written."""

_FORMS: Final = {
    "lmdb": r".+",
    "file": r".+",
    "memory": r"",
    "s3": r"//[^/]+(/.*)?",
    "redis": r"//[^/]+(/[0-9]+)?",
    "mooncake": r"//[^/]+",
}


def tier_problems(config: CacheConfig) -> Iterable[str]:
    """Yield what can not work in ``[host]`` and ``[storage]``, one line a key.

    The keys and types of `config`, and its components and their sections, have been checked.
    """
    if config.host is not None:
        yield from _host_problems(config, config.host)
        yield from _policy_problems(config.host)
        yield from _unit_problems(config, config.host)
        yield from _backend_problems(config, config.host)
    if config.storage is not None:
        if config.host is None:
            yield (
                "storage: there is no [host]; pages reach storage through the host pools: add "
                "[host], or remove [storage]"
            )
        yield from _storage_problems(config, config.storage)


def device_pools(config: CacheConfig) -> Iterator[tuple[str, Pool]]:
    """Yield name and section of the device pool of each component that is built in."""
    for name in config.components:
        pool = getattr(config.pools, name, None)
        if isinstance(pool, (KvGeometry, MambaPoolConfig)):
            yield name, pool


def least_host_slots(config: CacheConfig, name: str) -> int:
    """Return the slots of `name` on the host below which nothing there could be used again.

    One page; where the component has the window of the config, one window in whole pages.
    """
    page = slots_per_page(config, name)
    window = (config.window or 1) if name == "swa" else 1
    return -(-window // page) * page


def _host_problems(config: CacheConfig, host: HostConfig) -> Iterable[str]:
    wrong = set()
    for name, section in host.pools.items():
        path = f"host.pools.{name}"
        if name not in config.components:
            wrong.add(name)
            hint = did_you_mean(name, config.components)
            yield (
                f'{path}: "{name}" is not in components{hint}; remove this section, or add '
                f'"{name}" to components'
            )
        keys = [key for key in ("ratio", "bytes", "size") if getattr(section, key) is not None]
        if len(keys) > 1:
            wrong.add(name)
            yield f"{path}: {' and '.join(keys)} are given; one says how large it is: keep one"
    for name, pool in device_pools(config):
        if name not in wrong:
            yield from _host_size_problems(config, host, name, pool)


def _host_size_problems(
    config: CacheConfig, host: HostConfig, name: str, pool: Pool
) -> Iterable[str]:
    section = host.pools.get(name)
    given = next(
        (
            key
            for key in ("size", "bytes", "ratio")
            if section and getattr(section, key) is not None
        ),
        None,
    )
    path = "host.ratio" if given is None else f"host.pools.{name}.{given}"
    each = bytes_per_slot(pool)
    slots, least = host_slots(config, name, each), least_host_slots(config, name)
    if slots > INTEGER_MAX:
        yield f"{path}: gives the host pool of {name} more than 2**48 slots; make it smaller"
    elif slots < least:
        # What the key of this very pool must be; a ratio is not rounded into something that fails.
        right = {
            "size": f"at least {least}",
            "bytes": f"at least {least * each}",
            "ratio": f"at least {least}/{pool.size}",
        }[given or "ratio"]
        thing = "states" if isinstance(pool, MambaPoolConfig) else "slots"
        what = "page" if least == slots_per_page(config, name) else "window"
        yield (
            f"{path}: gives the host pool of {name} {slots} {thing}, which do not hold one {what} "
            f"({least}); make it {right}"
        )


def _policy_problems(host: HostConfig) -> Iterable[str]:
    threshold = host.write_through_threshold
    if threshold is None:
        return
    if host.write_policy == "write_back":
        yield (
            'host.write_through_threshold: has no meaning with write_policy = "write_back", which '
            "backs up what is evicted; remove it"
        )
    elif host.write_policy == "write_through" and threshold != 1:
        yield (
            f'host.write_through_threshold: {threshold} does not go with write_policy = "'
            'write_through", which backs up what is inserted; write write_policy = '
            '"write_through_selective", or remove it'
        )


def _unit_problems(config: CacheConfig, host: HostConfig) -> Iterable[str]:
    page = config.page_size
    for key in ("units_in_flight", "batch_units", "load_back_quota"):
        value = getattr(host, key)
        if 0 < value < page:
            zero = ", or 0 for no limit" if key == "load_back_quota" else ""
            yield (
                f"host.{key}: {value} is less than one page (page_size is {page}), so nothing "
                f"could be moved; make it at least {page}{zero}"
            )
    if host.batch_units > host.units_in_flight:
        yield (
            f"host.batch_units: {host.batch_units} is more than host.units_in_flight "
            f"({host.units_in_flight}), so no batch could get full; make it at most that"
        )
    if 0 < host.load_back_quota < host.load_back_threshold:
        yield (
            f"host.load_back_quota: {host.load_back_quota} is less than host.load_back_threshold "
            f"({host.load_back_threshold}), so nothing could be loaded; make it at least that, or "
            "0 for no limit"
        )


def _backend_problems(config: CacheConfig, host: HostConfig) -> Iterable[str]:
    pools = dict(device_pools(config))
    holding = [name for name, pool in pools.items() if pool.holds_bytes]
    without = [name for name in pools if name not in holding]
    if holding and without:
        yield (
            f"pools.{without[0]}.holds_bytes: false, and true for {holding[0]}; with [host] a copy "
            "is real for all pools or modelled for all: set all alike"
        )
    elif holding and host.bandwidth is not None:
        yield (
            "host.bandwidth: has no meaning where pools hold bytes: their copies take what they "
            "take; remove it"
        )
    if host.backend == "cuda":
        for name, pool in pools.items():
            if pool.device.partition(":")[0] != "cuda":
                yield (
                    f'host.backend: "cuda" copies from and to CUDA devices, and pools.{name}.'
                    f'device is "{pool.device}"; write "threads" or "auto"'
                )
                break


def _storage_problems(config: CacheConfig, storage: StorageConfig) -> Iterable[str]:
    yield from _url_problems(storage.url)
    if storage.rank >= storage.ranks:
        yield (
            f"storage.rank: {storage.rank} is not below storage.ranks ({storage.ranks}); ranks "
            "count from 0"
        )
    if storage.prefetch_policy != "timeout":
        defaults = {"prefetch_timeout_base_s": 1.0, "prefetch_timeout_per_page_s": 0.004}
        for key, default in defaults.items():
            if getattr(storage, key) != default:
                yield (
                    f'storage.{key}: has no meaning with prefetch_policy = "'
                    f'{storage.prefetch_policy}"; remove it'
                )
    without = [name for name, pool in device_pools(config) if not pool.holds_bytes]
    if without:
        yield (
            f"storage: pools.{without[0]}.holds_bytes is false, so there are no bytes to store; "
            "set it to true, or remove [storage]"
        )
    page = config.page_size * sum(
        bytes_per_slot(pool) for _, pool in device_pools(config) if isinstance(pool, KvGeometry)
    )
    if 0 < storage.max_bytes < page:
        yield (
            f"storage.max_bytes: {storage.max_bytes} does not hold one page of {page} bytes; make "
            "it larger, or 0 for no limit"
        )
    if config.host is None:
        return
    slots = host_slots(config, "full", bytes_per_slot(config.pools.full))
    if storage.prefetch_threshold > slots > 0:
        yield (
            f"storage.prefetch_threshold: {storage.prefetch_threshold} is more than the {slots} "
            "slots of the host pool, so nothing could be fetched; make it smaller"
        )


def _url_problems(url: str) -> Iterable[str]:
    kind, colon, rest = url.partition(":")
    known = ", ".join(STORES.values())
    if not colon or kind not in STORES:
        hint = did_you_mean(kind, STORES) if colon else ""
        yield f'storage.url: "{url}" names no kind of store that is known{hint}; known: {known}'
    elif re.fullmatch(_FORMS[kind], rest, re.DOTALL) is None:
        yield f'storage.url: "{url}" is no address of this kind; write {STORES[kind]}'
