"""One random program on both faces: every answer and every refusal must be the same."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import radixtide
from radixtide import (
    AllocateParams,
    EvictParams,
    InsertParams,
    MatchPrefixParams,
    RadixKey,
    RadixtideError,
    Request,
)
from radixtide.blocking import UnifiedRadixCache
from radixtide.configs.schema import CacheConfig
from support.blocking import plain
from support.tier_config import SETS, Components, tier_config

STEPS = 150


class Awaited:
    """The awaited face as plain functions, each of which runs a loop until it is answered."""

    def __init__(self, target: Any, runner: asyncio.Runner) -> None:
        self._target = target
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not inspect.ismethod(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            async def run() -> Any:
                answer = value(*args, **kwargs)
                return await answer if inspect.isawaitable(answer) else answer

            answer = self._runner.run(run())
            is_handle = isinstance(answer, radixtide.LoadBack | radixtide.Prefetch)
            return Awaited(answer, self._runner) if is_handle else answer

        return call


@contextmanager
def awaited(config: CacheConfig) -> Iterator[Any]:
    async def opened() -> radixtide.UnifiedRadixCache:
        return await radixtide.UnifiedRadixCache(config).__aenter__()

    with asyncio.Runner() as runner:
        cache = runner.run(opened())
        yield Awaited(cache, runner)
        runner.run(cache.close())


class Program:
    """Random calls with what they need of each other; notes what came of each."""

    def __init__(self, cache: Any, seed: int, page: int) -> None:
        self.cache = cache
        self.dice = random.Random(seed)
        self.page = page
        self.answers: list[tuple[str, Any]] = []
        self.running: list[Request] = []
        self.receipts: list[Any] = []
        self.matches: list[Any] = []
        self.slots: list[Any] = []

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call and note its answer, or the type and text of its error."""
        try:
            answer = getattr(self.cache, name)(*args, **kwargs)
        except RadixtideError as error:
            self.answers.append((name, (type(error).__name__, str(error))))
            return None
        handle = name in ("load_back", "prefetch")
        self.answers.append((name, None if handle else plain(answer)))
        return answer

    def prompt(self) -> list[int]:
        """Return a prompt that shares its beginning with others."""
        stem = 1000 * self.dice.randrange(4)
        length = self.page * self.dice.randrange(1, 6) + self.dice.randrange(self.page)
        branch = self.dice.randrange(3)
        return [stem + at + (10_000 * branch if at > 2 * self.page else 0) for at in range(length)]

    def key(self) -> RadixKey:
        """Return a prompt's key, of one of two tenants."""
        return RadixKey(self.prompt(), cache_salt=self.dice.choice((None, None, "tenant")))

    def run(self, steps: int) -> list[tuple[str, Any]]:
        """Make so many steps, give everything back, and return all answers."""
        names = [name for name in dir(self) if name.startswith("step_")]
        for _ in range(steps):
            getattr(self, self.dice.choice(names))()
            # What goes on beside the calls is let end, so that the answers do not depend on time.
            self.call("drain")
        for req in self.running:
            self.call("abort_req", req)
        for receipt in self.receipts:
            self.call("dec_lock_ref", receipt)
        for slots in self.slots:
            self.call("free", slots)
        self.call("drain")
        self.call("pretty_print")
        self.answers.append(("audit", plain(self.cache.audit())))
        return self.answers

    def step_admit(self) -> None:
        """Match a request, load what the host has, and take the rest."""
        tokens = self.prompt()
        req = Request(rid=f"r{len(self.answers)}", origin_input_ids=tokens)
        if len(tokens) < 2 or len(self.running) > 4:
            return
        params = MatchPrefixParams(key=req.key(len(tokens) - 1), req=req, lock=True)
        match = self.call("match_prefix", params)
        if match.host_hit_length:
            load = self.call("load_back", match, req)
            self.answers.append(("wait", load.wait()))
        self.call(
            "allocate", AllocateParams(num_tokens=len(tokens) - req.cache_protected_len, req=req)
        )
        self.running.append(req)

    def step_go_on(self) -> None:
        """Cache a chunk, decode a token, or end a request one way or the other."""
        if not self.running:
            return
        req = self.dice.choice(self.running)
        how = self.dice.randrange(4)
        if how == 0:
            self.call("cache_unfinished_req", req, chunked=True)
        elif how == 1:
            if self.call("allocate", AllocateParams(num_tokens=1, req=req)) is not None:
                req.output_ids.append(7)
            self.call("release_window", req, len(req.origin_input_ids))
        else:
            self.running.remove(req)
            self.call("cache_finished_req" if how == 2 else "abort_req", req)
            if self.dice.random() < 0.1:
                self.call("cache_finished_req", req)

    def step_match(self) -> None:
        """Match, perhaps with a lock; look at what a handle says."""
        key = self.key()
        match = self.call("match_prefix", MatchPrefixParams(key=key, lock=self.dice.random() < 0.4))
        if match.receipt is not None:
            self.receipts.append(match.receipt)
        self.matches.append(match)
        self.call("device_indices", self.dice.choice(self.matches).last_device_node)

    def step_lock(self) -> None:
        """Lock a handle that may be stale, and release a receipt, perhaps twice."""
        if self.matches:
            receipt = self.call("inc_lock_ref", self.dice.choice(self.matches).last_device_node)
            if receipt is not None:
                self.receipts.append(receipt)
        if self.receipts:
            receipt = self.receipts.pop(self.dice.randrange(len(self.receipts)))
            self.call("dec_swa_lock_only", receipt)
            self.call("dec_lock_ref", receipt)
            if self.dice.random() < 0.2:
                self.call("dec_lock_ref", receipt)

    def step_insert(self) -> None:
        """Take slots and give them to the tree, or keep them."""
        key = self.key()
        room = self.call("allocate", AllocateParams(num_tokens=len(key)))
        if room is None:
            return
        whole = room.indices
        if self.dice.random() < 0.8:
            done = self.call("insert", InsertParams(key=key, value=whole))
            if done is not None:
                whole = whole[done.inserted_len :]
        if len(whole):
            self.slots.append(whole)

    def step_free(self) -> None:
        """Give slots back, perhaps twice."""
        if self.slots:
            slots = self.slots.pop(self.dice.randrange(len(self.slots)))
            self.call("free", slots)
            if self.dice.random() < 0.2:
                self.call("free", slots)

    def step_tiers(self) -> None:
        """Let something leave a tier, or come back from storage."""
        how = self.dice.randrange(4)
        if how == 0:
            self.call("flush", "device")
        elif how == 1:
            self.call("flush", "host")
        elif how == 2:
            fetch = self.call("prefetch", self.key())
            if fetch is not None:
                self.answers.append(("wait", fetch.wait()))
                fetch.close()
        elif self.matches:
            match = self.dice.choice(self.matches)
            load = self.call("load_back", match)
            if load is not None:
                self.answers.append(("wait", load.wait()))
                load.close()

    def step_whole(self) -> None:
        """Evict, pin, unpin, reset, or ask how things are."""
        how = self.dice.randrange(6)
        if how == 0:
            self.call("evict", EvictParams(num_tokens=self.dice.randrange(20)))
        elif how == 1:
            self.call("pin", self.key(), 1000.0)
        elif how == 2:
            self.call("unpin", self.key())
        elif how == 3:
            self.call("reset")
        elif how == 4:
            self.call("evict", EvictParams(num_tokens=-1))
        else:
            self.call("picture", 5)


def walked(
    face: Callable[[CacheConfig], Any], components: Components, page: int, seed: int, folder: Path
) -> list[tuple[str, Any]]:
    config = tier_config(
        components, page_size=page, pages=16, pins=4, url=f"lmdb:{folder}", storage={"model": "m"}
    )
    with face(config) as cache:
        return Program(cache, seed, page).run(STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("components", "page", "seed"),
    [(SETS[0], 4, 1), (SETS[0], 1, 2), (SETS[1], 4, 3), (SETS[1], 1, 4)],
)
def test_a_random_program_has_the_same_answers_on_both_faces(
    tmp_path: Path, components: Components, page: int, seed: int
) -> None:
    theirs = walked(awaited, components, page, seed, tmp_path / "awaited")
    ours = walked(UnifiedRadixCache, components, page, seed, tmp_path / "blocking")
    for at, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        assert one == other, at
    names = {name for name, _ in ours}
    assert names > {"load_back", "prefetch", "wait", "insert", "cache_finished_req", "reset"}
    assert any(name == "wait" and answer for name, answer in ours)
    refused = {answer[0] for _, answer in ours if isinstance(answer, tuple)}
    assert len(refused) > 3
    assert ours[-1][1]["violations"] == []
