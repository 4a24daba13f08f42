"""The host and storage sections: what is read, what is refused, and how large pools become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from radixtide.cli.main import app
from radixtide.configs.errors import ConfigError
from radixtide.configs.host import DTYPE_BYTES, bytes_per_slot, host_slots
from radixtide.configs.loader import parse_config, validate
from radixtide.configs.scaling import scaled
from radixtide.configs.schema import (
    CacheConfig,
    FullPoolConfig,
    HostConfig,
    HostPoolConfig,
    KvGeometry,
    MambaPoolConfig,
    PoolsConfig,
    StorageConfig,
)
from radixtide.configs.tier_rules import device_pools
from radixtide.tiers import StatePool, TokenToKVPool
from radixtide.tiers.kv_pool import DTYPES
from support.rooms import ROOT

FULL = "[pools.full]\nsize = 1024\n"
HOST = FULL + "[host]\n"
STORE = HOST + "[storage]\nurl = 'lmdb:/tmp/pages'\n"
BOOKS = HOST.replace("size = 1024", "size = 1024\nholds_bytes = false")
ALL = (
    "components = ['full', 'swa', 'mamba']\nwindow = 100\n"
    + FULL
    + "[pools.swa]\nsize = 256\n[pools.mamba]\nsize = 8\nextra_buffer = true\n[host]\n"
)


def refusal(text: str, **names: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "x.toml", **names)
    return str(caught.value)


def test_without_sections_there_are_no_tiers_below_the_device() -> None:
    config = parse_config(FULL)
    assert (config.host, config.storage) == (None, None)
    assert host_slots(config, "full", 1) == 0


def test_the_shortest_sections_take_every_default() -> None:
    config = parse_config(STORE)
    assert config.host == HostConfig()
    assert config.storage == StorageConfig(url="lmdb:/tmp/pages")


@pytest.mark.parametrize(
    ("policy", "threshold", "hits"),
    [
        ("write_through", None, 1),
        ("write_through", 1, 1),
        ("write_through_selective", None, 2),
        ("write_through_selective", 5, 5),
        ("write_back", None, 0),
    ],
)
def test_a_policy_has_its_threshold(policy: str, threshold: int | None, hits: int) -> None:
    text = HOST + f"write_policy = '{policy}'\n"
    if threshold is not None:
        text += f"write_through_threshold = {threshold}\n"
    host = parse_config(text).host
    assert host is not None
    assert host.backup_threshold == hits


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        (HOST + "ratoi = 1", "host.ratoi: unknown key", "did you mean ratio?"),
        (HOST + "ratio = 0", "host.ratio: found the integer 0", "a finite number above 0"),
        (HOST + "ratio = inf", "host.ratio: found the number inf", "a finite number above 0"),
        (HOST + "layout = 'page-first'", "host.layout: found", "did you mean page_first?"),
        (HOST + "write_policy = 'writeback'", "host.write_policy", "did you mean write_back?"),
        (HOST + "bandwidth = -1.0", "host.bandwidth: found the number -1.0", "above 0"),
        (HOST + "pools = 3", "host.pools: found the integer 3", "write [host.pools.NAME]"),
        (HOST + "pools.full = 3", "host.pools.full: found", "write [host.pools.full]"),
        (HOST + "pools.full.sise = 3", "host.pools.full.sise: unknown", "did you mean size?"),
        (HOST + "pools.full.size = 0", "host.pools.full.size: found the integer 0", "at least 1"),
        ("host = 2.0\n" + FULL, "host: found the number 2.0", "write [host]"),
        (HOST + "[storage]", "storage.url: missing", "needs a string"),
        (STORE + "ranks = 0", "storage.ranks: found the integer 0", "at least 1"),
        (STORE + "timeout_s = 0", "storage.timeout_s: found the integer 0", "above 0"),
        (STORE + "prefetch_policy = 'wait'", "storage.prefetch_policy: found", "wait_complete"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_would_be_right(
    text: str, path: str, hint: str
) -> None:
    message = refusal(text)
    assert message.startswith(f"x.toml: {path}")
    assert hint in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            FULL + "[storage]\nurl = 'memory:'",
            "storage: there is no [host]; pages reach storage through the host pools: add [host], "
            "or remove [storage]",
        ),
        pytest.param(
            HOST + "pools.swa.size = 64",
            'host.pools.swa: "swa" is not in components; remove this section, or add "swa" to '
            "components",
        ),
        pytest.param(
            HOST + "[host.pools.ful]",
            'host.pools.ful: "ful" is not in components; did you mean full?; remove this section, '
            'or add "ful" to components',
        ),
        pytest.param(
            HOST + "[host.pools.full]\nratio = 2.0\nsize = 64",
            "host.pools.full: ratio and size are given; one says how large it is: keep one",
        ),
        pytest.param(
            HOST + "[host.pools.full]\nratio = 2.0\nbytes = 9\nsize = 1",
            "host.pools.full: ratio and bytes and size are given; one says how large it is: keep "
            "one",
        ),
        pytest.param(
            HOST + "ratio = 0.0155",
            "host.ratio: gives the host pool of full 0 slots, which do not hold one page (16); "
            "make it at least 16/1024",
        ),
        pytest.param(
            HOST + "pools.full.ratio = 0.001",
            "host.pools.full.ratio: gives the host pool of full 0 slots, which do not hold one "
            "page (16); make it at least 16/1024",
        ),
        pytest.param(
            HOST + "pools.full.bytes = 4095",
            "host.pools.full.bytes: gives the host pool of full 0 slots, which do not hold one "
            "page (16); make it at least 4096",
        ),
        pytest.param(
            HOST + "pools.full.size = 15",
            "host.pools.full.size: gives the host pool of full 0 slots, which do not hold one page "
            "(16); make it at least 16",
        ),
        pytest.param(
            ALL + "pools.swa.size = 111",
            "host.pools.swa.size: gives the host pool of swa 96 slots, which do not hold one "
            "window (112); make it at least 112",
        ),
        pytest.param(
            ALL + "pools.mamba.ratio = 0.1",
            "host.pools.mamba.ratio: gives the host pool of mamba 0 states, which do not hold one "
            "page (1); make it at least 1/8",
        ),
        pytest.param(
            HOST + "ratio = 1e12",
            "host.ratio: gives the host pool of full more than 2**48 slots; make it smaller",
        ),
        pytest.param(
            HOST + "write_policy = 'write_back'\nwrite_through_threshold = 2",
            'host.write_through_threshold: has no meaning with write_policy = "write_back", which '
            "backs up what is evicted; remove it",
        ),
        pytest.param(
            HOST + "write_through_threshold = 2",
            "host.write_through_threshold: 2 does not go with write_policy = "
            '"write_through", which backs up what is inserted; write write_policy = '
            '"write_through_selective", or remove it',
        ),
        pytest.param(
            HOST + "batch_units = 15",
            "host.batch_units: 15 is less than one page (page_size is 16), so nothing could be "
            "moved; make it at least 16",
        ),
        pytest.param(
            HOST + "load_back_quota = 15",
            "host.load_back_quota: 15 is less than one page (page_size is 16), so nothing could be "
            "moved; make it at least 16, or 0 for no limit",
        ),
        pytest.param(
            HOST + "units_in_flight = 15\nbatch_units = 15",
            "2 problems\n  host.units_in_flight: 15 is less than one page (page_size is 16)",
        ),
        pytest.param(
            HOST + "units_in_flight = 4096",
            "host.batch_units: 8192 is more than host.units_in_flight (4096), so no batch could "
            "get full; make it at most that",
        ),
        pytest.param(
            HOST + "load_back_quota = 64\nload_back_threshold = 65",
            "host.load_back_quota: 64 is less than host.load_back_threshold (65), so nothing could "
            "be loaded; make it at least that, or 0 for no limit",
        ),
        pytest.param(
            HOST + "backend = 'cuda'",
            'host.backend: "cuda" copies from and to CUDA devices, and pools.full.device is "cpu"; '
            'write "threads" or "auto"',
        ),
        pytest.param(
            HOST + "bandwidth = 1e9",
            "host.bandwidth: has no meaning where pools hold bytes: their copies take what they "
            "take; remove it",
        ),
        pytest.param(
            ALL.replace("size = 256", "size = 256\nholds_bytes = false"),
            "pools.swa.holds_bytes: false, and true for full; with [host] a copy is real for all "
            "pools or modelled for all: set all alike",
        ),
        pytest.param(
            BOOKS + "[storage]\nurl = 'memory:'",
            "storage: pools.full.holds_bytes is false, so there are no bytes to store; set it to "
            "true, or remove [storage]",
        ),
        pytest.param(
            STORE + "ranks = 2\nrank = 2",
            "storage.rank: 2 is not below storage.ranks (2); ranks count from 0",
        ),
        pytest.param(
            STORE + "max_bytes = 4095",
            "storage.max_bytes: 4095 does not hold one page of 4096 bytes; make it larger, or 0 "
            "for no limit",
        ),
        pytest.param(
            STORE + "prefetch_threshold = 2049",
            "storage.prefetch_threshold: 2049 is more than the 2048 slots of the host pool, so "
            "nothing could be fetched; make it smaller",
        ),
        pytest.param(
            STORE + "prefetch_policy = 'best_effort'\nprefetch_timeout_base_s = 2",
            "storage.prefetch_timeout_base_s: has no meaning with prefetch_policy = "
            '"best_effort"; remove it',
        ),
    ],
)
def test_an_impossible_combination_is_refused_with_the_key_to_change(
    text: str, message: str
) -> None:
    assert refusal(text).startswith(f"x.toml: {message}")


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("lmdb:", "lmdb:PATH"),
        ("memory:x", "memory:"),
        ("s3:bucket", "s3://BUCKET/PREFIX"),
        ("s3:///prefix", "s3://BUCKET/PREFIX"),
        ("redis://host:1/db", "redis://HOST:PORT/DB"),
        ("redis:/host", "redis://HOST:PORT/DB"),
        ("mooncake://", "mooncake://HOST:PORT"),
        ("mooncake://host:1/x", "mooncake://HOST:PORT"),
        ("/var/pages", "names no kind of store"),
        ("lmbd:/var/pages", "did you mean lmdb?"),
        ("", "names no kind of store"),
    ],
)
def test_an_address_that_no_store_can_have_is_refused(url: str, right: str) -> None:
    message = refusal(STORE.replace("lmdb:/tmp/pages", url))
    assert message.startswith(f'x.toml: storage.url: "{url}" ')
    assert right in message


@pytest.mark.parametrize(
    "url",
    [
        "lmdb:pages",
        "lmdb:/var/lib/pages with spaces",
        "file:pages",
        "memory:",
        "s3://bucket",
        "s3://bucket/a/b",
        "redis://localhost",
        "redis://:secret@host:6379/0",
        "mooncake://host:50051",
    ],
)
def test_addresses_of_every_kind_are_accepted(url: str) -> None:
    storage = parse_config(STORE.replace("lmdb:/tmp/pages", url)).storage
    assert storage is not None
    assert storage.url == url


@pytest.mark.parametrize(
    "text",
    [
        HOST + "ratio = 0.015625",
        HOST + "pools.full.bytes = 4096",
        HOST + "pools.full.size = 16",
        ALL + "pools.swa.size = 112\npools.mamba.size = 1",
        HOST + "units_in_flight = 16\nbatch_units = 16\nload_back_quota = 16",
        HOST + "write_policy = 'write_through_selective'\nwrite_through_threshold = 1",
        BOOKS + "bandwidth = 1e9",
        HOST.replace("1024", "1024\ndevice = 'cuda:1'") + "backend = 'cuda'",
        STORE + "max_bytes = 4096\nprefetch_threshold = 2048",
        STORE + "prefetch_policy = 'wait_complete'",
        STORE + "rank = 1\nranks = 2",
    ],
)
def test_what_just_fits_is_accepted(text: str) -> None:
    assert parse_config(text).host is not None


def test_a_component_of_ones_own_may_have_a_host_pool() -> None:
    text = (
        "components = ['full', 'sidecar']\n"
        + HOST
        + "ratio = 1.5\n[host.pools.sidecar]\nratio = 0.5\n"
    )
    config = parse_config(text, components=["sidecar"])
    assert host_slots(config, "sidecar", 8, device_slots=70, page_size=4) == 32
    assert host_slots(config, "sidecar", 8, device_slots=70) == 32
    with pytest.raises(ConfigError, match=r"host\.pools\.sidecar: how large .*; set bytes or size"):
        host_slots(config, "sidecar", 8)
    sized = parse_config(text.replace("ratio = 0.5", "bytes = 1000"), components=["sidecar"])
    assert host_slots(sized, "sidecar", 8, page_size=4) == 124


def hosted(device: int, page: int, **section: Any) -> CacheConfig:
    host = HostConfig(ratio=0.29, pools={"full": HostPoolConfig(**section)} if section else {})
    full = FullPoolConfig(size=device, holds_bytes=False)
    return validate(CacheConfig(pools=PoolsConfig(full=full), page_size=page, host=host))


@pytest.mark.parametrize(
    ("config", "slots"),
    [
        (hosted(100, 1), 29),  # floats would make it 28
        (hosted(1030, 10), 290),  # 103 pages times 0.29
        (hosted(1024, 16, ratio=3), 3072),
        (hosted(1030, 16, ratio=1.0), 1024),  # the device pool in whole pages
        (hosted(1024, 16, size=100), 96),
        (hosted(1024, 16, bytes=256 * 50), 48),
        (hosted(1024, 16, bytes=256 * 48 - 1), 32),
    ],
)
def test_a_host_pool_is_whole_pages_of_what_was_asked_for(config: CacheConfig, slots: int) -> None:
    assert host_slots(config, "full", bytes_per_slot(config.pools.full)) == slots


def test_states_are_counted_one_by_one() -> None:
    config = parse_config(ALL + "ratio = 0.75\n")
    pools = dict(device_pools(config))
    slots = {name: host_slots(config, name, bytes_per_slot(pool)) for name, pool in pools.items()}
    assert slots == {"full": 768, "swa": 192, "mamba": 6}


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_what_a_slot_takes_is_what_the_real_pools_say(dtype: Any) -> None:
    shape = {"layers": 3, "dtype": dtype, "device": "meta"}
    kv = [
        KvGeometry(size=1, kv_heads=4, head_dim=48, **shape),
        KvGeometry(size=1, kind="mla", latent_dim=72, **shape),
    ]
    for section in kv:
        assert bytes_per_slot(section) == TokenToKVPool(section, 1).bytes_per_slot
    states = MambaPoolConfig(
        size=1, layers=5, conv_shape=(7, 3), ssm_shape=(2, 8, 4), conv_dtype=dtype, device="meta"
    )
    assert bytes_per_slot(states) == StatePool(states, 1).bytes_per_state
    assert set(DTYPE_BYTES) == set(DTYPES)


def test_scaling_keeps_ratios_and_divides_sizes() -> None:
    text = ALL + "ratio = 1.5\n[host.pools.full]\nbytes = 524_288\n[host.pools.mamba]\nsize = 20\n"
    storage = "[storage]\nurl = 'memory:'\nmax_bytes = 1_000_000_000\nprefetch_threshold = 1000\n"
    was = parse_config(text + storage)
    config = validate(scaled(was, 4))
    assert config.host is not None
    assert config.storage is not None
    # 2,048 slots are asked for in bytes; a slot has a quarter of its dimensions now.
    assert config.host.pools == {"full": HostPoolConfig(size=512), "mamba": HostPoolConfig(size=5)}
    assert config.host.ratio == 1.5
    assert host_slots(config, "swa", 1) == 336
    assert config.storage.max_bytes == 1_000_000_000 // 4 // 4
    assert config.storage.prefetch_threshold == 512
    assert was.storage is not None
    assert replace(config.storage, max_bytes=1, prefetch_threshold=1) == replace(
        was.storage, max_bytes=1, prefetch_threshold=1
    )


@pytest.mark.parametrize("factor", [2, 3, 1000])
def test_host_pools_stay_sound_when_they_are_scaled(factor: int) -> None:
    text = ALL + "ratio = 0.4375\n[storage]\nurl = 'memory:'\nmax_bytes = 8192\n"
    config = validate(scaled(parse_config(text), factor))
    for name, least in (("full", 16), ("swa", 112), ("mamba", 1)):
        assert host_slots(config, name, 1) >= least


def test_the_command_line_tells_the_tiers(tmp_path: Path) -> None:
    file = tmp_path / "cache.toml"
    file.write_text(ALL + "[storage]\nurl = 'memory:'\n")
    result = CliRunner().invoke(app, ["config", "check", str(file)])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == (
        f"{file}: ok (full, swa, mamba; 64 pages of 16, 16 for windows of 100, 8 states; lru; "
        "host: 128 pages, 32 for windows, 16 states, write_through; storage: memory:)"
    )
    shown = CliRunner().invoke(app, ["config", "show", str(file)]).stdout
    assert parse_config(shown) == parse_config(file.read_text())
    assert 'write_policy = "write_through"\n' in shown


def test_the_reference_page_tells_the_forms_of_addresses() -> None:
    from radixtide.configs.tier_rules import STORES

    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert all(f"`{form}`" in page for form in STORES.values())
