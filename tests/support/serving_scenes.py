"""Scenes in which a slip of the runner, the cache or the scheduler must show.

Each returns what is wrong, in words; nothing of it may be, and of a planted slip something must.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import anyio

from radixtide.serving.config import EngineConfig
from radixtide.serving.params import SamplingParams
from radixtide.serving.rows import Row
from support.serving_bench import BASE, FAMILY, bench
from support.serving_hand import drop_from_device, scribble
from support.serving_models import Served, prompt
from support.serving_records import at_rest, judge
from support.serving_storm import Ask, rubbish, stage


async def walk(subject: Served) -> list[str]:
    """Serve a few requests by hand, through all that may happen to them; return what is wrong."""
    wrong: list[str] = []
    async with bench(subject, subject.config(tokens=1024, state_chunk=16)) as b:
        hand = b.hand
        # What is free is not zero, as in a pool that has served for a while.
        await scribble(b.cache)
        await hand.serve("base", BASE, tokens=2)
        lives = [await hand.begin(rid, FAMILY[rid]) for rid in ("inside", "same", "other")]
        await hand.together(lives, tokens=3)
        await drop_from_device(b.cache)
        await scribble(b.cache)
        live = await hand.begin("longer", FAMILY["longer"])
        assert live.loaded > 0
        await hand.together([live], tokens=3)
        verdict = judge(subject.reference, subject.spread, hand.records, hand.prompts, hand.outputs)
        wrong += verdict.wrong
        for text in (BASE, FAMILY["inside"], FAMILY["longer"]):
            wrong += (await at_rest(b.cache, subject.reference, subject.spread, text)).wrong
    return wrong


async def serve(subject: Served) -> list[str]:
    """Serve a few clients by the engine, in two namespaces; return what is wrong."""
    config = subject.config(tokens=256, window_tokens=192, states=20, state_chunk=16)
    wrong: list[str] = []
    # Nobody waits for what another one computes, so that both compute the same.
    async with stage(subject, config, EngineConfig(overtakes_max=0, reserve_tokens=0)) as st:
        cache = st.engine.cache
        await st.ask(Ask("theirs", BASE, 3, salt="theirs"))
        rubbish(cache)
        st.prompts.clear()
        # A token of the answer ends a page; what follows is the same prompt and more.
        first = Ask("first", BASE[:45], 19)
        await st.ask(first)
        text = [*first.prompt, *st.outputs["first"]]
        await st.ask_all(
            [
                Ask("on", [*text[:64], *prompt(7, 20)], 4),
                Ask("same", BASE[:90], 40),
                Ask("same too", BASE[:90], 40),
                Ask("inside", [*BASE[:50], *prompt(9, 30)], 40),
            ]
        )
        wrong += st.judge().wrong
        for tokens in (text, BASE[:90]):
            wrong += (await at_rest(cache, subject.reference, subject.spread, tokens)).wrong
    return wrong


async def leave(subject: Served) -> list[str]:
    """Let a client go while a pass computes its request; return what is wrong."""
    go, reached = threading.Event(), anyio.Event()
    loop = asyncio.get_running_loop()
    wrong: list[str] = []

    def hold(rows: Sequence[Row]) -> None:
        if any(row.rid == "goes" for row in rows) and not go.is_set():
            loop.call_soon_threadsafe(reached.set)
            go.wait(60.0)

    config = EngineConfig(max_running=8, step_tokens=64, chunk_tokens=24)
    async with stage(subject, subject.config(tokens=512, state_chunk=16), config) as st:
        await st.ask(Ask("base", prompt(9, 60), 3))
        st.runner.before = hold
        stays = asyncio.ensure_future(st.ask(Ask("stays", prompt(10, 50), 8)))
        params = SamplingParams(max_tokens=8, temperature=0.0)
        generation = st.engine.generate([*prompt(9, 60), 1, 2, 3], params, rid="goes")
        await reached.wait()
        gone = asyncio.ensure_future(generation.aclose())
        later = asyncio.ensure_future(st.ask(Ask("later", prompt(9, 40), 4)))
        with anyio.move_on_after(0.2):
            await asyncio.shield(gone)
        if gone.done():
            wrong.append("it was let go while the pass wrote to its slots")
        go.set()
        await asyncio.gather(gone, stays, later)
        wrong += st.judge().wrong
    return wrong


__all__ = ("leave", "serve", "walk")
