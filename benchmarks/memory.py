"""``python -m benchmarks.memory``: resident memory a tree node.

Inserts ``--nodes`` keys of ``--tokens`` random tokens, each a leaf of its own under the root, and
prints by how much the process grew over the inserts, divided by their number. The first two percent
warm up and do not count. Freed heap is given back to the system before each reading, so that what
is counted is what is kept.
"""

from __future__ import annotations

import gc
import json
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console

from benchmarks.calls import choose, run_async
from benchmarks.generators import VOCABULARY, OwnWorkload
from benchmarks.recorder import resident_bytes
from benchmarks.sets import COMPONENTS, config_for, state_grid
from radixtide import AllocateParams, InsertParams, RadixKey, UnifiedRadixCache


async def bytes_per_node(
    nodes: int, tokens: int, page: int, components: str = "full", seed: int = 0
) -> float:
    """Return the growth of resident memory a node, over `nodes` leaves of `tokens` tokens."""
    rng = np.random.default_rng(seed)
    warm = min(max(nodes // 50, 64), nodes - 1)
    states = 1 if "mamba" in COMPONENTS[components] else 0

    async def add(cache: UnifiedRadixCache, count: int) -> None:
        for _ in range(count):
            key = RadixKey(rng.integers(VOCABULARY, size=tokens, dtype=np.int64))
            taken = await cache.allocate(AllocateParams(num_tokens=tokens, mamba_num=states))
            slots = taken.indices
            result = await cache.insert(
                InsertParams(key=key, value=slots, mamba_value=taken.mamba_indices)
            )
            if len(slots) > result.inserted_len:
                await cache.free(slots[result.inserted_len :])

    stream = OwnWorkload("memory", (nodes + 8) * tokens, nodes, lambda: iter(()))
    async with UnifiedRadixCache(config_for(stream, page, components)) as cache:
        await add(cache, warm)
        gc.collect()
        before = resident_bytes()
        await add(cache, nodes - warm)
        gc.collect()
        return (resident_bytes() - before) / (nodes - warm)


def main(
    *,
    nodes: Annotated[int, typer.Option(min=2, help="Leaves to insert.")] = 50_000,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens a leaf.")] = 64,
    page: Annotated[int, typer.Option(min=1, help="Tokens a page.")] = 16,
    components: Annotated[
        str, typer.Option(help="Kinds of state: full, full_swa, full_mamba or full_swa_mamba.")
    ] = "full",
    seed: Annotated[int, typer.Option(help="Seed of the tokens.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure the resident memory that one tree node costs."""
    if tokens < page:
        raise typer.BadParameter(
            f"--tokens: {tokens} is less than a page of {page}; nothing is kept"
        )
    choose("--components", components, COMPONENTS)
    if tokens % state_grid(page, components) and "mamba" in COMPONENTS[components]:
        raise typer.BadParameter(
            f"--tokens: {tokens} is no multiple of {state_grid(page, components)}, at which "
            "states are kept"
        )
    torch.set_num_threads(1)
    grown = round(run_async(lambda: bytes_per_node(nodes, tokens, page, components, seed)))
    if as_json:
        print(
            json.dumps(
                {
                    "bytes_per_node": grown,
                    "nodes": nodes,
                    "tokens": tokens,
                    "page": page,
                    "components": components,
                }
            )
        )
    else:
        payload = 2 * 8 * tokens
        Console().print(
            f"{grown:,} bytes a node, of which {payload:,} are its {tokens} tokens and slot indices"
        )


if __name__ == "__main__":
    typer.run(main)
