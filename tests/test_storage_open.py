"""Stores by their URLs, and what is said when one can not be."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from radixtide.configs.errors import ConfigError, how_to_install
from radixtide.configs.schema import StorageConfig
from radixtide.tiers.storage import StorageFailed, guarded_storage, open_storage
from radixtide.tiers.storage.files import FileStore
from radixtide.tiers.storage.lmdb_store import LmdbStore
from support.servers import free_port
from support.stores import page_keys


def test_a_path_may_be_relative_absolute_or_below_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    for url, expected in {
        "lmdb:pages": tmp_path / "pages",
        "lmdb:./a/b": tmp_path / "a" / "b",
        "lmdb:/var/pages": Path("/var/pages"),
        "lmdb:///var/pages": Path("/var/pages"),
        "lmdb:~/pages": Path("/home/someone/pages"),
        "LMDB:/with%20space": Path("/with space"),
        "file:/var/pages?sync=1": Path("/var/pages"),
    }.items():
        store = open_storage(url)
        assert isinstance(store, LmdbStore | FileStore)
        assert store.path == expected


def test_options_and_limits_reach_the_store() -> None:
    store = open_storage("lmdb:/x?sync=0", max_bytes=1000)
    assert isinstance(store, LmdbStore)
    assert (store.sync, store.max_bytes) == (False, 1000)
    files = open_storage("file:/x?sync=1")
    assert isinstance(files, FileStore)
    assert (files.sync, files.max_bytes) == (True, 0)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "begins with none of lmdb, file"),
        ("pages", "begins with none of"),
        ("ftp://host/x", "begins with none of"),
        ("lmdb:", "want lmdb:PATH"),
        ("lmdb://host/path", "want lmdb:PATH"),
        ("file:", "want file:PATH"),
        ("object+file:", "want object\\+file:PATH"),
        ("lmdb:/x?fast=1", "no option 'fast'; it has sync"),
        ("lmdb:/x?sync=yes", "want 0 or 1"),
        ("memory:/x", "has no path"),
        ("memory:?x=1", "no option 'x'"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket?access_key_id=x", "no option 'access_key_id'"),
        ("redis:///1", "want redis://HOST:PORT/DB"),
        ("redis://host/name", "want redis://HOST:PORT/DB"),
        ("mooncake://host", "want mooncake://HOST:PORT"),
        ("mooncake://host:port", "want mooncake://HOST:PORT"),
        ("mooncake://host:1/x", "want mooncake://HOST:PORT"),
        ("mooncake://host:1?segment=lots", "want bytes"),
    ],
)
def test_a_url_that_names_no_store_says_what_would_be_right(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_storage(url)


@pytest.mark.parametrize(
    "url",
    ["memory:", "object+file:/x", "s3://bucket", "redis://host:1/0", "mooncake://host:1"],
)
def test_a_limit_that_only_a_server_can_keep_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"storage\.max_bytes"):
        open_storage(url, max_bytes=1)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        open_storage("redis://:secret@host/name")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("lmdb:/x", "lmdb", "lmdb"),
        ("memory:", "obstore", "obstore"),
        ("object+file:/x", "obstore", "obstore"),
        ("s3://bucket", "obstore", "obstore"),
        ("redis://host:1/0", "redis", "redis"),
        ("mooncake://host:1", "mooncake.store", "mooncake-transfer-engine-non-cuda"),
    ],
)
def test_a_missing_package_says_what_to_install(
    url: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = module.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as caught:
        open_storage(url)
    assert package in str(caught.value)
    assert how_to_install("storage") in str(caught.value)


def test_files_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lmdb", "obstore", "redis", "mooncake"):
        monkeypatch.setitem(sys.modules, module, None)
    open_storage("file:/x")


@pytest.mark.parametrize("scheme", ["redis", "s3", "mooncake", "lmdb", "file", "object+file"])
async def test_a_store_that_is_not_there_fails_to_open_and_can_be_closed(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    (tmp_path / "file").write_text("in the way")
    port = free_port()
    url = {
        "redis": f"redis://127.0.0.1:{port}/0",
        "s3": f"s3://bucket?endpoint=http://127.0.0.1:{port}&region=us-east-1",
        "mooncake": f"mooncake://127.0.0.1:{port}",
    }.get(scheme, f"{scheme}:{tmp_path}/file/below")
    store = open_storage(url, timeout_s=0.5)
    for _ in range(2):
        with pytest.raises(StorageFailed):
            await store.open()
    await store.close()
    with pytest.raises(StorageFailed):
        await store.exists(page_keys(1))


async def test_one_process_opens_an_lmdb_directory_once(tmp_path: Path) -> None:
    async with open_storage(f"lmdb:{tmp_path}?sync=0") as first:
        second = open_storage(f"lmdb:{tmp_path}?sync=0")
        with pytest.raises(StorageFailed, match="open"):
            await second.open()
        await second.close()
        assert await first.exists(page_keys(1)) == [False]


async def test_a_configuration_makes_a_guarded_store(tmp_path: Path) -> None:
    config = StorageConfig(url=f"file:{tmp_path}", max_bytes=10_000, timeout_s=3.0)
    loop = asyncio.get_running_loop()
    async with guarded_storage(config, loop.time) as store:
        assert store.timeout_s == 3.0
        assert store.stats().max_bytes == 10_000
        assert store.stats().circuit == "closed"
