"""What the runner says, of rows made by hand, is what the model says without a cache."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from radixtide.configs.schema import StorageConfig
from support.actors import until
from support.serving_bench import BASE, FAMILY, bench
from support.serving_hand import drop_from_device, scribble
from support.serving_models import RANDOM, SOME, Served, prompt, served

pytestmark = pytest.mark.slow


@pytest.fixture(params=RANDOM)
def subject(request: pytest.FixtureRequest) -> Served:
    """Return a model of each kind, with what is known of it."""
    return served(request.param)


@pytest.mark.parametrize(
    ("subject", "page"),
    [*((one, 16) for one in RANDOM), ("random:gemma3", 1), ("random:lfm2", 64)]
    + [pytest.param(one, page, marks=pytest.mark.nightly) for one in RANDOM for page in (1, 64)],
    indirect=["subject"],
)
async def test_prompts_that_share_and_branch_inside_pages(subject: Served, page: int) -> None:
    async with bench(subject, subject.config(page_size=page, state_chunk=16)) as b:
        await b.hand.serve("base", BASE, tokens=3)
        await scribble(b.cache)
        lives = [await b.hand.begin(rid, tokens) for rid, tokens in FAMILY.items()]
        assert any(live.found for live in lives)
        assert lives[-1].found == 0
        await b.hand.together(lives, tokens=5)
        b.check(compared=30)
        await scribble(b.cache)
        await b.check_at_rest(BASE, *FAMILY.values())
        again = await b.hand.serve("again", FAMILY["longer"], tokens=3)
        assert again.found > 0
        b.check()


@pytest.mark.parametrize(
    "chunk", [5, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 16, 200))]
)
async def test_chunks_of_any_size(subject: Served, chunk: int) -> None:
    async with bench(subject, subject.config(state_chunk=16)) as b:
        b.hand.chunk = chunk
        tokens = BASE[:41] if chunk == 1 else BASE
        await b.hand.serve("first", tokens, tokens=3)
        await b.hand.serve("second", [*tokens[:35], *prompt(6, 20)], tokens=20)
        b.check()
        await b.check_at_rest(tokens)


async def test_the_same_prompt_twice_at_once(subject: Served) -> None:
    async with bench(subject, subject.config(state_chunk=16)) as b:
        lives = [await b.hand.begin(rid, BASE) for rid in ("one", "two")]
        assert [live.found for live in lives] == [0, 0]
        while min(len(b.hand.outputs[live.rid]) for live in lives) < 2:
            await b.hand.step(*lives)
            # What was given back as a duplicate is the next one's at once.
            await scribble(b.cache)
        await b.hand.together(lives, tokens=30)
        b.check(compared=60)
        await b.check_at_rest([*BASE, *b.hand.outputs["one"]])


async def test_what_was_evicted_to_the_host_comes_back_layer_by_layer(subject: Served) -> None:
    async with bench(subject, subject.config(state_chunk=16)) as b:
        await b.hand.serve("base", BASE, tokens=3)
        await drop_from_device(b.cache)
        await scribble(b.cache)
        lives = [await b.hand.begin("longer", FAMILY["longer"])]
        assert lives[0].loaded > 0
        lives.append(await b.hand.begin("inside", FAMILY["inside"]))
        await b.hand.together(lives, tokens=4)
        assert b.copies.loads > 0
        assert b.hand.states or b.copies.awaited > 0
        b.check(compared=8)
        await b.check_at_rest(*FAMILY.values())


@pytest.mark.parametrize("subject", SOME, indirect=True)
async def test_one_token_behind_a_load_beside_others_that_decode(subject: Served) -> None:
    async with bench(subject, subject.config(page_size=1, state_chunk=16)) as b:
        await b.hand.serve("base", BASE, tokens=3)
        await drop_from_device(b.cache)
        await scribble(b.cache)
        other = await b.hand.begin("other", FAMILY["other"])
        while not b.hand.outputs["other"]:
            await b.hand.step(other)
        # All of it but the last token is found, so its first row is one token long.
        tail = [*BASE, *b.hand.outputs["base"][:1]]
        last = await b.hand.begin("last", tail)
        assert last.found == len(tail) - 1
        await b.hand.together([other, last], tokens=6)
        b.check()


@pytest.mark.parametrize("subject", SOME, indirect=True)
async def test_what_storage_has_after_a_restart(subject: Served, tmp_path: Path) -> None:
    store = StorageConfig(
        url=f"file:{tmp_path}", prefetch_policy="wait_complete", prefetch_threshold=1
    )
    config = subject.config(state_chunk=16, storage=store)
    async with bench(subject, config) as b:
        await b.hand.serve("base", BASE, tokens=3)
        await b.cache.drain()
    async with bench(subject, config) as b:
        for seed in range(3):
            await b.hand.serve(f"filler {seed}", prompt(20 + seed, 50), tokens=1)
        live = await b.hand.begin("cold", FAMILY["longer"])
        assert live.found == 0
        await b.hand.abort(live)
        async with await b.cache.prefetch(live.req.key()) as fetch:
            assert await fetch.wait() > 0
        await scribble(b.cache)
        live = await b.hand.begin("longer", FAMILY["longer"])
        assert live.loaded > 0
        await b.hand.together([live], tokens=5)
        del b.hand.prompts["cold"]
        b.check(compared=5)
        await b.check_at_rest(FAMILY["longer"])


@pytest.mark.parametrize("subject", SOME, indirect=True)
async def test_requests_that_are_retracted_and_go_on(subject: Served) -> None:
    async with bench(subject, subject.config(state_chunk=16)) as b:
        for rid in ("first", "second"):
            live = await b.hand.begin(rid, FAMILY["longer"])
            while len(b.hand.outputs[rid]) < 8:
                await b.hand.step(live)
            await b.hand.finish(live)
            await scribble(b.cache)
            # Its answer so far is a part of its prompt now.
            again = await b.hand.begin(rid, live.text)
            assert again.found > 0
            await b.hand.together([again], tokens=30)
        b.check(compared=60)


@pytest.mark.parametrize("subject", SOME, indirect=True)
async def test_slots_of_aborted_requests_are_used_again(subject: Served) -> None:
    config = subject.config(
        tokens=256, window_tokens=192, state_chunk=16, max_requests=4, host_ratio=None
    )
    async with bench(subject, config) as b:
        for seed in range(6):
            gone = await b.hand.begin(f"gone {seed}", prompt(30 + seed, 90))
            await b.hand.step(gone)
            stays = await b.hand.begin(f"stays {seed}", prompt(40 + seed, 70))
            await b.hand.step(gone, stays)
            await b.hand.abort(gone)
            await scribble(b.cache)
            await b.hand.together([stays], tokens=4)
        b.check(compared=24)
        assert (await b.cache.stats()).counters["evicted_nodes"] > 0


@pytest.mark.parametrize("subject", SOME, indirect=True)
async def test_what_another_namespace_has_changes_no_answer(subject: Served) -> None:
    async with bench(subject, subject.config(page_size=1, state_chunk=16)) as b:
        await b.hand.serve("theirs", BASE, tokens=3, salt="theirs")
        await drop_from_device(b.cache)
        await b.hand.serve("theirs again", BASE, tokens=3, salt="theirs")
        # As if theirs were of other weights: whoever reads it answers differently.
        for memory in b.cache.memory.values():
            for layer in memory.parts():
                for part in layer:
                    part.fill_(3.0)
        b.hand.records.said.clear()
        b.hand.prompts.clear()
        for rid, salt in (("mine", None), ("yours", "yours"), ("mine too", "")):
            live = await b.hand.serve(rid, BASE, tokens=4, salt=salt)
            assert live.found == 0 or rid == "mine too"
        b.check(compared=8)
        await b.check_at_rest(BASE)


def test_the_bounds_say_something(subject: Served) -> None:
    """One token of the context must make a larger difference than is allowed."""
    other = [*BASE]
    other[20] = (other[20] + 1) % 256
    reference = subject.reference
    changed = (reference.logits(other) - reference.logits(BASE)).abs().amax(dim=1)
    assert float(changed[20:].min()) > 10 * subject.spread.logits_max
    assert subject.spread.logits_max < 1e-3


@pytest.mark.parametrize("way", ["before", "within"])
@pytest.mark.parametrize("spec", ["random:llama", "random:gemma3"])
async def test_a_load_that_fails_costs_its_own_row_and_no_other(spec: str, way: str) -> None:
    # Where there are states no row stands on a load: they are copied when it is over.
    subject = served(spec)
    async with bench(subject, subject.config(page_size=1, state_chunk=16)) as b:
        hand = b.hand
        await hand.serve("base", BASE, tokens=3)
        await drop_from_device(b.cache)
        other = await hand.begin("other", FAMILY["other"])
        while not hand.outputs["other"]:
            await hand.step(other)
        b.copies.damage = True
        text = [*BASE, *hand.outputs["base"][:1]]
        last = await hand.begin("last", text)
        assert last.load is not None
        if way == "before":
            await until(lambda: last.load is not None and last.load.done, 10**7)
        rows = [await hand.row(last), await hand.row(other)]
        outcomes = await anyio.to_thread.run_sync(hand.forward, rows)
        assert outcomes[0].lost
        assert not outcomes[1].lost
        hand.records.note(rows[1:], outcomes[1:])
        await hand.commit(other, rows[1], outcomes[1])
        assert await last.load.wait() == 0
        await hand.abort(last)
        again = await hand.begin("last", text)
        await hand.together([other, again], tokens=8)
        b.check(compared=16)
