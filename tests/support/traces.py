"""Small traces for tests, and plain models of what a cache finds in them."""

from __future__ import annotations

import json
import os
import random
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.rooms import ROOT

Prompt = list[int]
"""The block ids of one prompt."""


def public_trace() -> Path | None:
    """Return the public conversation trace, where somebody put it: it is not shipped."""
    named = os.environ.get("RADIXTIDE_TRACE")
    places = [Path(named)] if named else [ROOT.parent / "shared/traces/conversation_trace.jsonl"]
    return next((place for place in places if place.is_file()), None)


def conversations(requests: int, seed: int, block: int = 512) -> list[dict[str, Any]]:
    """Return lines of chats: few system prompts, growing prompts, now and then a long one."""
    dice = random.Random(seed)
    fresh = iter(range(10, 10**9))
    chats: list[Prompt] = []
    lines: list[dict[str, Any]] = []
    for number in range(requests):
        if chats and dice.random() < 0.6:
            # Of the chats, the newer ones go on more often.
            chat = chats[-1 - min(int(dice.expovariate(0.4)), len(chats) - 1)]
            chat.extend(next(fresh) for _ in range(dice.randint(1, 3)))
        else:
            chat = [dice.randrange(3), *(next(fresh) for _ in range(dice.randint(1, 6)))]
            chats.append(chat)
        lines.append(
            {
                "timestamp": number * dice.randint(50, 400),
                "input_length": (len(chat) - 1) * block + dice.randint(1, block),
                "output_length": dice.randint(1, 90),
                "hash_ids": list(chat),
            }
        )
    return lines


def write_trace(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    """Write `lines` as JSON lines to `path` and return it."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def prompts(lines: Iterable[dict[str, Any]]) -> list[Prompt]:
    """Return the block ids of each line."""
    return [line["hash_ids"] for line in lines]


def endless_hits(trace: Iterable[Prompt]) -> int:
    """Return the leading blocks of each prompt that stood there before, with nothing evicted."""
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for prompt in trace:
        leading = True
        for end in range(1, len(prompt) + 1):
            prefix = tuple(prompt[:end])
            leading = leading and prefix in seen
            hits += leading
            seen.add(prefix)
    return hits


def lru_hits(trace: Iterable[Prompt], capacity: int) -> int:
    """Return the hits of a plain LRU over blocks, touched in prefix order."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for prompt in trace:
        leading = True
        for block in prompt:
            leading = leading and block in kept
            hits += leading
            kept[block] = None
            kept.move_to_end(block)
            if len(kept) > capacity:
                kept.popitem(last=False)
    return hits
