"""The store that a URL names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from radixtide.configs.errors import ConfigError
from radixtide.tiers.storage.base import StorageBackend, extra
from radixtide.tiers.storage.breaker import Guarded
from radixtide.tiers.storage.files import FileStore
from radixtide.tiers.storage.lmdb_store import LmdbStore
from radixtide.tiers.storage.mooncake_store import BUFFER, SEGMENT, MooncakeStore
from radixtide.tiers.storage.objects import ObjectPages
from radixtide.tiers.storage.redis_store import RedisStore

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config

    from radixtide.configs.schema import StorageConfig

_UNITS: Final = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class Place(NamedTuple):
    """A URL in parts, and the limits that every store gets."""

    url: str
    host: str
    path: str
    options: dict[str, str]
    max_bytes: int
    timeout_s: float


def open_storage(url: str, *, max_bytes: int = 0, timeout_s: float = 5.0) -> StorageBackend:
    """Return the store that `url` names, not opened yet.

    ``lmdb:PATH``, ``file:PATH``, ``object+file:PATH``, ``memory:``, ``s3://BUCKET/PREFIX``,
    ``redis://HOST:PORT/DB``, ``mooncake://HOST:PORT``, each with its options behind a question
    mark (docs/storage.md). `max_bytes`: size limit, for stores that keep one themselves.
    `timeout_s`: for sockets. ConfigError for what can not be, also for a package that is missing.
    """
    scheme, colon, rest = url.partition(":")
    maker = _MAKERS.get(scheme.lower()) if colon else None
    if maker is None:
        raise ConfigError(f"storage.url: {url!r} begins with none of {', '.join(_MAKERS)}")
    path, _, query = rest.partition("?")
    host = ""
    if path.startswith("//"):
        host = urlsplit(f"//{path[2:]}").netloc
        path = path[2 + len(host) :]
    options = dict(parse_qsl(query, keep_blank_values=True))
    place = Place(url, host, unquote(path), options, max_bytes, timeout_s)
    make, allowed, limited = maker
    wrong = sorted(set(options) - set(allowed))
    if wrong:
        raise ConfigError(
            f"storage.url: {scheme} has no option {wrong[0]!r}"
            + (f"; it has {', '.join(allowed)}" if allowed else "")
        )
    if max_bytes and not limited:
        raise ConfigError(
            f"storage.max_bytes: {scheme} has no limit of ours; set the server's own, and 0 here"
        )
    return make(place)


def guarded_storage(config: StorageConfig, clock: Callable[[], float]) -> Guarded:
    """Return the store of a configuration behind its deadline and circuit breaker, not opened."""
    return Guarded(
        open_storage(config.url, max_bytes=config.max_bytes, timeout_s=config.timeout_s),
        timeout_s=config.timeout_s,
        failures=config.breaker_failures,
        reset_s=config.breaker_reset_s,
        clock=clock,
    )


def _lmdb(place: Place) -> StorageBackend:
    return LmdbStore(_folder(place), max_bytes=place.max_bytes, sync=_flag(place, "sync", "1"))


def _file(place: Place) -> StorageBackend:
    return FileStore(_folder(place), max_bytes=place.max_bytes, sync=_flag(place, "sync", "0"))


def _object_file(place: Place) -> StorageBackend:
    folder = _folder(place)
    with extra("obstore"):
        from obstore.store import LocalStore
    return ObjectPages("object+file", lambda: LocalStore(folder, mkdir=True))


def _memory(place: Place) -> StorageBackend:
    if place.path or place.host:
        raise ConfigError(f"storage.url: {place.url!r}: memory: has no path")
    with extra("obstore"):
        from obstore.store import MemoryStore
    store = MemoryStore()
    return ObjectPages("memory", lambda: store)


def _s3(place: Place) -> StorageBackend:
    if not place.host:
        raise ConfigError(f"storage.url: {place.url!r} names no bucket: s3://BUCKET/PREFIX")
    with extra("obstore"):
        from obstore.store import S3Store
    endpoint = place.options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "")
    config: S3Config = {}
    if endpoint:
        config["endpoint"] = endpoint
    if "region" in place.options:
        config["region"] = place.options["region"]
    if _flag(place, "anonymous", "0"):
        config["skip_signature"] = True
    if _flag(place, "virtual_hosted", "0"):
        config["virtual_hosted_style_request"] = True
    seconds = timedelta(seconds=place.timeout_s)
    client: ClientConfig = {
        "timeout": seconds,
        "connect_timeout": seconds,
        "allow_http": endpoint.startswith("http://"),
    }
    prefix = place.path.strip("/") or None
    return ObjectPages(
        "s3",
        lambda: S3Store(
            place.host,
            prefix=prefix,
            config=config,
            client_options=client,
            retry_config={"max_retries": 2, "retry_timeout": seconds},
        ),
    )


def _redis(place: Place) -> StorageBackend:
    database = place.path.strip("/")
    if not place.host or (database and not database.isdigit()):
        raise ConfigError("storage.url: want redis://HOST:PORT/DB, DB being a number")
    return RedisStore(place.url.replace("valkey", "redis", 1), timeout_s=place.timeout_s)


def _mooncake(place: Place) -> StorageBackend:
    host, _, port = place.host.rpartition(":")
    if not host or not port.isdigit() or place.path.strip("/"):
        raise ConfigError(f"storage.url: {place.url!r}: want mooncake://HOST:PORT")
    options = place.options
    return MooncakeStore(
        place.host,
        segment=_size(place, "segment", SEGMENT),
        buffer=_size(place, "buffer", BUFFER),
        local=options.get("local", "127.0.0.1"),
        protocol=options.get("protocol", "tcp"),
        devices=options.get("devices", ""),
        metadata=options.get("metadata", "P2PHANDSHAKE"),
    )


def _folder(place: Place) -> Path:
    if place.host or not place.path:
        scheme = place.url.partition(":")[0]
        raise ConfigError(
            f"storage.url: {place.url!r}: want {scheme}:PATH, or {scheme}:///ABSOLUTE/PATH"
        )
    return Path(place.path).expanduser().absolute()


def _flag(place: Place, name: str, otherwise: str) -> bool:
    text = place.options.get(name, otherwise)
    if text not in ("0", "1"):
        raise ConfigError(f"storage.url: {name}={text}: want 0 or 1")
    return text == "1"


def _size(place: Place, name: str, otherwise: int) -> int:
    text = place.options.get(name)
    if text is None:
        return otherwise
    match = re.fullmatch(r"(\d{1,15})\s*([A-Za-z]*)", text)
    if match is None or match[2].upper() not in _UNITS:
        raise ConfigError(f"storage.url: {name}={text}: want bytes, or a number with MiB or GiB")
    return int(match[1]) * _UNITS[match[2].upper()]


class _Maker(NamedTuple):
    """How a store is made, which options its URL has, whether it keeps a size limit."""

    make: Callable[[Place], StorageBackend]
    options: tuple[str, ...] = ()
    limited: bool = False


_MAKERS: Final = {
    "lmdb": _Maker(_lmdb, ("sync",), limited=True),
    "file": _Maker(_file, ("sync",), limited=True),
    "object+file": _Maker(_object_file),
    "memory": _Maker(_memory),
    "s3": _Maker(_s3, ("endpoint", "region", "anonymous", "virtual_hosted")),
    "redis": _Maker(_redis),
    "rediss": _Maker(_redis),
    "valkey": _Maker(_redis),
    "mooncake": _Maker(
        _mooncake, ("segment", "buffer", "local", "protocol", "devices", "metadata")
    ),
}
