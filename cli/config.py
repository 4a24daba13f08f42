"""``radixtide config``: look at a config file before a cache does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from radixtide.configs.host import bytes_per_slot, host_slots
from radixtide.configs.loader import parse_config, parse_toml, read_text, render_config
from radixtide.configs.schema import CacheConfig
from radixtide.configs.sections import installed_components
from radixtide.configs.tier_rules import device_pools
from radixtide.serving.http.config import ServeConfig, parse_serve_config

app = typer.Typer(help="Check config files, and show what they mean.", no_args_is_help=True)

SERVER_KEYS: Final = {*ServeConfig.__struct_fields__} - {*CacheConfig.__struct_fields__}
"""Keys at the top of a file that only a server's config has."""

File = Annotated[Path, typer.Argument(metavar="FILE", help="A config file in TOML.")]


@app.command()
def check(file: File) -> None:
    """Say whether FILE is a config that a cache can be built from, or a server."""
    config = _load(file)
    if not isinstance(config, CacheConfig):
        typer.echo(f"{file}: ok ({_of_server(config)})")
        return
    pools, page = config.pools, config.page_size
    sizes = [f"{pools.full.size // page} pages of {page}"]
    if pools.swa is not None:
        sizes.append(f"{pools.swa.size // page} for windows of {config.window}")
    if pools.mamba is not None:
        sizes.append(f"{pools.mamba.size} states")
    parts = [", ".join(config.components), ", ".join(sizes), config.eviction.policy]
    if config.host is not None:
        parts.append(f"host: {', '.join(_host_sizes(config))}, {config.host.write_policy}")
    if config.storage is not None:
        parts.append(f"storage: {config.storage.url}")
    typer.echo(f"{file}: ok ({'; '.join(parts)})")


def _load(file: Path) -> CacheConfig | ServeConfig:
    """Return what is in `file`: the config of a cache, or that of a server."""
    text, source = read_text(file), str(file)
    if SERVER_KEYS.isdisjoint(parse_toml(text, source)):
        return parse_config(text, source, components=installed_components())
    return parse_serve_config(text, source)


def _of_server(config: ServeConfig) -> str:
    cache, server = config.cache, config.server
    parts = [config.model, f"{cache.tokens} tokens in pages of {cache.page_size}"]
    parts.append(f"host: {cache.host_ratio:g} times that" if cache.host_ratio else "no host tier")
    if cache.storage is not None:
        parts.append(f"storage: {cache.storage.url}")
    return "; ".join([*parts, f"{server.host}:{server.port}", f"{len(server.keys)} keys"])


def _host_sizes(config: CacheConfig) -> Iterator[str]:
    """Yield what each host pool holds, in the words of the device pools."""
    for name, pool in device_pools(config):
        slots = host_slots(config, name, bytes_per_slot(pool))
        if name == "mamba":
            yield f"{slots} states"
        else:
            yield f"{slots // config.page_size} " + ("pages" if name == "full" else "for windows")


@app.command()
def show(
    file: File,
    json: Annotated[bool, typer.Option("--json", help="As one JSON object, for machines.")] = False,
) -> None:
    """Print FILE with every default spelled out, as TOML."""
    config = _load(file)
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(config)).decode())
    else:
        typer.echo(render_config(config), nl=False)
