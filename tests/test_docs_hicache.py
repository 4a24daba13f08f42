"""What docs/hicache.md says of a config, of counters and of calls is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec

from radixtide import UnifiedRadixCache
from radixtide.configs.loader import load_config
from radixtide.configs.schema import HostConfig, HostPoolConfig, LimitsConfig, StorageConfig
from support.rooms import ROOT
from support.tier_config import tier_config

TEXT = (ROOT / "docs" / "hicache.md").read_text(encoding="utf-8")


def test_the_config_on_the_page_is_one(tmp_path: Path) -> None:
    (config,) = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
    file = tmp_path / "config.toml"
    file.write_text(config, encoding="utf-8")
    loaded = load_config(file)
    assert loaded.host is not None
    assert loaded.storage is not None
    assert loaded.host.ratio == 4.0


async def test_every_counter_on_the_page_is_counted() -> None:
    table = TEXT[TEXT.index("| counter |") :].split("\n\n")[0]
    named = {
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert len(named) > 12
    async with UnifiedRadixCache(tier_config(url="memory:")) as cache:
        stats = await cache.stats()
        assert named - {"counter"} <= set(stats.counters)
        assert stats.actors["tiering"].alive
        assert stats.storage is not None


def test_every_name_on_the_page_is_a_key_a_call_or_a_counter() -> None:
    keys = {
        field.name
        for section in (HostConfig, HostPoolConfig, StorageConfig, LimitsConfig)
        for field in msgspec.structs.fields(section)
    }
    calls = {name for name, _ in inspect.getmembers(UnifiedRadixCache) if name[0] != "_"}
    values = {"write_through", "write_through_selective", "write_back"}
    values |= {"best_effort", "timeout", "wait_complete", "ready", "after", "lock", "cow_mamba"}
    values |= {"wait", "cache_"}
    # The first column of a table names a policy or a counter; those are looked at above.
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith("| `"))
    named = set(re.findall(r"`(\w+)(?:\(.*?\))?`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
    assert len(named) > 15
    assert named <= keys | calls | values
