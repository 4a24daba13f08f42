"""The picture of the live page in the docs: several users talk, and the page is caught at it.

``RADIXTIDE_SCREENSHOT=FILE`` keeps the picture (`make screenshot`); ``RADIXTIDE_SCREENSHOT_MODEL``
names another model than a random one. Without them the test still holds that there is a picture.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pytest

from radixtide.configs.schema import PinsConfig, StorageConfig
from radixtide.serving.engine import Engine
from radixtide.serving.geometry import cache_config
from radixtide.serving.http.config import ServerConfig
from radixtide.serving.models import LoadedModel, load_model
from radixtide.serving.params import SamplingParams
from support.browser import browser, page
from support.server import MODEL, ThreadedServer

TEXT: Final = (
    "the cache keeps what prompts share and a request computes only what is new when memory is "
    "short the coldest go to the host and from there to storage where another server finds them"
)
SYSTEMS: Final = (150, 90, 60, 30)
"""Words of the system prompts; each user talks under one of them."""
USERS: Final = 16
AT_ONCE: Final = 5
REQUESTS: Final = 60
BYTES_MAX: Final = 400_000


class Scene:
    """Users who talk, some at a time, each going on with what was said before."""

    def __init__(self, engine: Engine, model: LoadedModel, seed: int = 7) -> None:
        self.engine = engine
        self.dice = random.Random(seed)
        self.encode = model.tokenizer.encode
        self.systems = [self.encode(self.text(count)) for count in SYSTEMS]
        self.said: dict[int, list[int]] = {}

    def text(self, count: int) -> str:
        """Return so many words."""
        return " ".join(self.dice.choices(TEXT.split(), k=count)) + ". "

    async def play(self, requests: int) -> None:
        """Answer that many requests."""
        # Nothing can be pinned that is not cached.
        await self.answer(self.systems[2], 8)
        await self.engine.pin(self.systems[2], 3600.0)
        left = [requests]

        async def client() -> None:
            while left[0] > 0:
                left[0] -= 1
                await self.turn(self.dice.randrange(USERS))

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))

    async def turn(self, user: int) -> None:
        """Let a user say something, and hear the answer."""
        before = self.said.get(user)
        if before is None or len(before) > 1200:
            (before,) = self.dice.choices(self.systems, weights=(5, 4, 2, 1))
        prompt = [*before, *self.encode(self.text(self.dice.choice((4, 8, 16, 30))))]
        answer = await self.answer(prompt, self.dice.choice((8, 16, 32)))
        self.said[user] = [*prompt, *answer]

    async def answer(self, prompt: list[int], tokens: int) -> list[int]:
        """Return the tokens of an answer."""
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        async with self.engine.generate(prompt, params) as generation:
            return [one.id for one in await generation.tokens()]


@pytest.mark.slow
def test_the_page_can_be_pictured(tmp_path: Path) -> None:
    wanted = os.environ.get("RADIXTIDE_SCREENSHOT")
    model = load_model(os.environ.get("RADIXTIDE_SCREENSHOT_MODEL", MODEL))
    requests = REQUESTS if wanted else 12
    cache = msgspec.structs.replace(
        cache_config(model, tokens=4096, page_size=16, storage=StorageConfig(url="memory:")),
        pins=PinsConfig(budget=1024),
    )
    target = Path(wanted).absolute() if wanted else tmp_path / "live-tree.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        browser() as chromium,
        ThreadedServer(ServerConfig(port=0), cache=cache, model=model) as server,
        page(
            chromium,
            color_scheme="light",
            viewport={"width": 1440, "height": 1040},
            reduced_motion="no-preference",
        ) as shown,
    ):
        shown.set_default_timeout(300_000)
        shown.goto(server.url)
        shown.wait_for_selector('#state[data-state="live"]')
        assert server.engine is not None
        scene = Scene(server.engine, model)
        playing = asyncio.run_coroutine_threadsafe(scene.play(requests), server._loop)
        shown.wait_for_function(
            "least => document.querySelectorAll('#log li').length >= least"
            " && document.querySelectorAll('#running tbody tr').length >= 3",
            arg=requests * 2 // 3,
        )
        shown.screenshot(path=target, full_page=True)
        playing.result(300)
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert 40_000 < len(data) < BYTES_MAX
    wide, high = np.frombuffer(data[16:24], dtype=">u4").tolist()
    assert wide == 1440
    assert 900 < high < 1300
