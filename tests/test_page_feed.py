"""The feed of the live page: one look for all, no more often than allowed, no secret in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.serving.engine import Engine
from radixtide.serving.geometry import cache_config
from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.live_feed import PAUSE_MAX, Feed
from radixtide.serving.models import LoadedModel, load_model
from radixtide.serving.params import SamplingParams
from radixtide.tree.key import RadixKey
from support.caches import store
from support.server import ThreadedServer
from support.servers import wait_for

QUICK_SERVER = ServerConfig(port=0)
QUICK = ServerConfig(live_interval_s=0.01, live_share_max=1000.0)
Frame = dict[str, Any]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("random:llama")


@asynccontextmanager
async def opened(model: LoadedModel, tokens: int = 2048) -> AsyncGenerator[Engine]:
    """Open an engine with a small cache."""
    async with Engine(model, cache_config(model, tokens=tokens, page_size=8)) as engine:
        yield engine


async def answer(engine: Engine, prompt: list[int], **options: Any) -> None:
    """Have a prompt answered in a few tokens."""
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    async with engine.generate(prompt, params, **options) as generation:
        await generation.tokens()


def read(frame: bytes) -> Frame:
    """Return the events of a frame by name."""
    blocks = frame.decode().removesuffix("\n\n").split("\n\n")
    events = [block.split("\n") for block in blocks]
    return {
        name.removeprefix("event: "): json.loads(data.removeprefix("data: "))
        for name, data in events
    }


async def until(frames: AsyncIterator[bytes], wanted: Any) -> Frame:
    """Return the first frame of which `wanted` holds."""
    async for frame in frames:
        found = read(frame)
        if wanted(found):
            return found
    raise AssertionError("the feed ended")


async def test_the_first_frame_has_the_whole_tree(model: LoadedModel) -> None:
    async with opened(model) as engine:
        await answer(engine, [1] * 40)
        feed = Feed(QUICK, lambda: engine, model=lambda: "its name")
        first = read(await anext(feed.frames()))
        now, tree = first["now"], first["tree"]
        assert (now["phase"], now["model"]) == ("ready", "its name")
        assert tree["nodes_total"] == now["nodes"] == len(tree["nodes"])
        assert now["totals"]["computed"] == 40
        assert [(one["prompt"], one["output"]) for one in now["ended"]] == [(40, 4)]
        assert now["pools"]["full"]["device"]["size"] == 2048


async def test_a_tree_that_did_not_change_is_not_sent_again_nor_looked_at(
    model: LoadedModel,
) -> None:
    async with opened(model) as engine:
        await answer(engine, [1] * 40)
        await engine.drain()
        feed = Feed(QUICK, lambda: engine)
        frames = feed.frames()
        assert "tree" in read(await anext(frames))
        looks = feed.looks
        for _ in range(5):
            assert set(read(await anext(frames))) == {"now"}
        assert feed.looks == looks
        await answer(engine, [2] * 40)
        found = await until(frames, lambda frame: "tree" in frame)
        assert found["tree"]["nodes_total"] >= 2


async def test_all_who_watch_get_the_same_frames_for_one_look_each(model: LoadedModel) -> None:
    async with opened(model) as engine:
        feed = Feed(QUICK, lambda: engine)

        async def watch() -> list[bytes]:
            seen = []
            async for frame in feed.frames():
                seen.append(frame)
                if len(seen) == 8:
                    return seen
            raise AssertionError

        working = asyncio.create_task(
            asyncio.wait_for(
                asyncio.gather(*(answer(engine, [turn] * 30) for turn in range(5))), 60
            )
        )
        everyone = await asyncio.gather(*(watch() for _ in range(10)))
        await working
        numbers = [[read(frame)["now"]["at"] for frame in seen] for seen in everyone]
        made = sorted({at for seen in numbers for at in seen})
        # Who is served late may see one more; all the same they are as good as all the same.
        assert len(made) <= 10
        assert all(seen == sorted(set(seen)) for seen in numbers)
        assert feed.looks <= len(made)


async def test_nothing_is_looked_at_while_nobody_watches(model: LoadedModel) -> None:
    async with opened(model) as engine:
        feed = Feed(QUICK, lambda: engine)
        await answer(engine, [1] * 40)
        assert feed.looks == 0
        frames = feed.frames()
        await anext(frames)
        await frames.aclose()
        looks = feed.looks
        await answer(engine, [2] * 40)
        assert feed.looks == looks


async def test_when_the_one_who_looks_goes_away_another_takes_over(model: LoadedModel) -> None:
    async with opened(model) as engine:
        feed = Feed(ServerConfig(live_interval_s=0.05), lambda: engine)
        watching: list[asyncio.Task[None]] = []
        seen = [0, 0, 0]

        async def watch(at: int) -> None:
            async for _ in feed.frames():
                seen[at] += 1

        watching = [asyncio.create_task(watch(at)) for at in range(3)]

        async def reach(at: int, count: int) -> None:
            async with asyncio.timeout(60):
                async for _ in feed.frames():
                    if seen[at] >= count:
                        return

        await reach(2, 2)
        for task in watching[:2]:
            task.cancel()
        await asyncio.gather(*watching[:2], return_exceptions=True)
        await reach(2, seen[2] + 3)
        watching[2].cancel()
        await asyncio.gather(watching[2], return_exceptions=True)


async def test_a_look_that_costs_much_is_taken_less_often(model: LoadedModel) -> None:
    async with opened(model, tokens=65_536) as engine:
        for turn in range(1500):
            await store(engine.cache, RadixKey([2 + turn] * 16))
        config = ServerConfig(live_interval_s=0.01, live_share_max=0.02)
        feed = Feed(config, lambda: engine)
        now = read(await anext(feed.frames()))["now"]
        assert now["look_s"] > 0.02 * 0.01
        bound = min(now["look_s"] / 0.02, PAUSE_MAX * 0.01)
        assert now["interval_s"] == pytest.approx(bound)


async def test_no_text_of_a_user_gets_into_it(model: LoadedModel) -> None:
    async with opened(model) as engine:
        feed = Feed(QUICK, lambda: engine)
        frames = feed.frames()
        secrets = {"rid": "the-name-of-a-request", "cache_salt": "the-salt", "extra_key": "adapter"}
        running = asyncio.create_task(answer(engine, list(b"what nobody may read") * 20, **secrets))
        text = b""
        while not running.done():
            text += await anext(frames)
        for _ in range(3):
            text += await anext(frames)
        await running
        assert b'"state":"ended"' in text
        for secret in (*secrets.values(), "nobody may read", str(list(b"what nobody"))[1:-1]):
            assert secret.encode() not in text
            assert secret.replace(" ", "").encode() not in text


async def test_before_the_model_is_there_it_says_so(model: LoadedModel) -> None:
    async with opened(model) as engine:
        known: list[Engine] = []
        feed = Feed(
            QUICK, lambda: known[0] if known else None, lambda: "ready" if known else "loading"
        )
        frames = feed.frames()
        first = read(await anext(frames))
        assert (first["now"]["phase"], "tree" in first) == ("loading", False)
        known.append(engine)
        found = await until(frames, lambda frame: frame["now"]["phase"] == "ready")
        assert "tree" in found


async def test_a_cache_that_fails_is_told_and_the_feed_goes_on(model: LoadedModel) -> None:
    config = cache_config(model, tokens=2048, page_size=8)
    async with UnifiedRadixCache(config) as cache, Engine(model, cache) as engine:
        feed = Feed(QUICK, lambda: engine)
        frames = feed.frames()
        assert "trouble" not in read(await anext(frames))["now"]
        await cache.close()
        found = await until(frames, lambda frame: "trouble" in frame["now"])
        assert found["now"]["trouble"] == "CacheClosed"
        assert read(await anext(frames))["now"]["phase"] == "ready"


async def test_it_ends_when_the_server_does(model: LoadedModel) -> None:
    async with opened(model) as engine:
        phases = ["ready"]
        feed = Feed(QUICK, lambda: engine, lambda: phases[-1])
        frames = feed.frames()
        await anext(frames)
        phases.append("stopping")
        left = [frame async for frame in frames]
        assert len(left) <= 1


@contextmanager
def watching(server: ThreadedServer) -> Iterator[httpx.Response]:
    """Open the feed for the length of the block."""
    with (
        httpx.Client(trust_env=False, timeout=30.0) as client,
        client.stream("GET", f"{server.url}/live") as answer,
    ):
        yield answer


def test_only_so_many_may_watch_and_who_leaves_makes_room(model: LoadedModel) -> None:
    config = ServerConfig(port=0, live_viewers_max=2, live_interval_s=0.05)
    with ThreadedServer(config, model=model, tokens=2048) as server, watching(server) as first:
        with watching(server) as second, watching(server) as third:
            assert [one.status_code for one in (first, second, third)] == [200, 200, 503]
            assert any('"viewers":2' in line for line in first.iter_lines())

        def has_room() -> bool:
            with watching(server) as another:
                return another.status_code == 200

        wait_for(has_room, "nobody makes room")


def test_the_page_may_load_nothing_from_elsewhere_and_sits_in_no_frame(model: LoadedModel) -> None:
    with ThreadedServer(QUICK_SERVER, model=model, tokens=2048) as server:
        for path in ("/", "/page.js", "/page.css", "/page_tree.js"):
            answer = server.get(path)
            assert answer.status_code == 200
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert server.get("/page_nothing.js").status_code == 404
