"""Slips planted in memory: what a cache or an engine that is a little wrong would do.

Each is one change of one function, made for the length of a test. Whoever compares answers has to
see it; what it does not see, it does not test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest

from radixtide import Request, UnifiedRadixCache
from radixtide.serving import masks, runner
from radixtide.serving.planning import Planner, Work
from radixtide.serving.pool_cache import Places, PoolCache
from radixtide.serving.rows import Row
from radixtide.serving.scheduler import Scheduler
from radixtide.serving.sequence import Sequence as Served
from radixtide.tiers.copy_engine import CopyJob
from radixtide.tiers.state_pool import StatePool
from support.serving_copies import JustInTime

ModelRunner: Final[Any] = runner.ModelRunner


@dataclass(frozen=True)
class Slip:
    """A slip.

    ``specs``: models that it must show on; the first is tried with every change. ``plant``: makes
    it. ``shows``: a word of what is found: a slip that only breaks the program is no slip.
    """

    name: str
    specs: tuple[str, ...]
    plant: Callable[[pytest.MonkeyPatch], None]
    shows: str = " off"

    def is_told(self, wrong: list[str]) -> bool:
        """Return whether what was found is what this slip does."""
        return any(self.shows in one for one in wrong) and not any("Error" in one for one in wrong)


LLAMA, GEMMA = "random:llama", "random:gemma3"
QWEN, LFM = "random:qwen3_next", "random:lfm2"
STATES: Final = (LFM, QWEN)


def _wrap(
    owner: Any, name: str, change: Callable[..., Any]
) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what puts ``change(original, *args)`` in the place of a function."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)

        def changed(*args: Any, **options: Any) -> Any:
            return change(original, *args, **options)

        patch.setattr(owner, name, changed)

    return plant


# -- in the runner -------------------------------------------------------------


def _write_shifted(original: Any, self: PoolCache, buffer: Any, places: Places, new: Any) -> None:
    original(self, buffer, Places(places.read, places.write.roll(1)), new)


def _read_one_less(original: Any, self: PoolCache, buffer: Any, places: Places, part: int) -> Any:
    read = places.read.clone()
    if len(read) > 1 and self.rows == 1:
        read[0] = read[1]
    return original(self, buffer, Places(read, places.write), part)


def _never_fresh(original: Any, self: PoolCache, buffer: Any) -> Any:
    assert self.states is not None
    return buffer.index_select(0, self.states.slots)


def _wide_window(original: Any, *args: Any) -> Any:
    *first, window, device = args
    return original(*first, window + 1, device)


def _narrow_window(original: Any, *args: Any) -> Any:
    *first, window, device = args
    return original(*first, window - 1, device)


def _keeps_before(original: Any, self: Any, rows: list[Row]) -> Any:
    # As if the copy were made before the pass: the state is that of an earlier length.
    for row in rows:
        if row.keep_state is not None and row.state is not None:
            self._memory["mamba"].copy(row.state, row.keep_state)
    patch, self.keep_states = self.keep_states, lambda _: None
    try:
        return original(self, rows)
    finally:
        self.keep_states = patch


def _exchanged(original: Any, self: Any, rows: list[Row]) -> Any:
    outcomes = original(self, rows)
    return outcomes[::-1]


def _first_inputs(original: Any, self: PoolCache, new: Any, layer: int, *a: Any, **kw: Any) -> Any:
    both = original(self, new, layer, *a, **kw)
    at, pool = self._state_layer(layer)
    self.put_state(pool.conv[at], both[..., : pool.conv[at].shape[-1]])
    return both


RUNNER: Final = (
    Slip(
        "new tokens are written one slot on",
        (LLAMA, GEMMA, LFM),
        _wrap(PoolCache, "write", _write_shifted),
    ),
    Slip(
        "the first token of a context is read from its neighbour",
        (LLAMA, QWEN),
        _wrap(PoolCache, "read", _read_one_less),
    ),
    Slip("a state does not begin at zero", STATES, _wrap(PoolCache, "take_state", _never_fresh)),
    Slip("a window is one token too wide", (GEMMA,), _wrap(masks, "windowed", _wide_window)),
    Slip("a window is one token too narrow", (GEMMA,), _wrap(masks, "windowed", _narrow_window)),
    Slip(
        "a short row of a batch sees what fills it up",
        (LLAMA, GEMMA),
        _wrap(masks, "padded", lambda original, lengths, longest: original(lengths + 1, longest)),
    ),
    Slip(
        "a state is kept as it was before its chunk",
        STATES,
        _wrap(ModelRunner, "run", _keeps_before),
    ),
    Slip("a state is not kept", STATES, _wrap(ModelRunner, "keep_states", lambda *_: None)),
    Slip(
        "a convolution keeps its first inputs",
        STATES,
        _wrap(PoolCache, "update_conv_state", _first_inputs),
    ),
    Slip("a load is not waited for", (LLAMA, GEMMA), _wrap(PoolCache, "wait", lambda *_: None)),
    Slip("answers of a batch are exchanged", (LLAMA, LFM), _wrap(ModelRunner, "run", _exchanged)),
)

# -- in the cache --------------------------------------------------------------


def _pages_exchanged(original: Any, self: JustInTime, job: CopyJob) -> None:
    """Exchange the first two pages of a load, as no digest would tell that had none to compare."""
    if job.direction == "load":
        transfers = []
        for one in job.transfers:
            host = one.host.copy()
            page = 16 if one.pool != "mamba" else 1
            if len(host) >= 2 * page:
                host[:page], host[page : 2 * page] = one.host[page : 2 * page], one.host[:page]
            transfers.append(msgspec.structs.replace(one, host=host))
        job = msgspec.structs.replace(job, transfers=tuple(transfers), digests=None)
    original(self, job)


CACHE: Final = (
    Slip(
        "a state is not copied for its request", STATES, _wrap(StatePool, "copy", lambda *_: None)
    ),
    Slip(
        "two pages of a load are exchanged",
        (LLAMA, GEMMA),
        _wrap(JustInTime, "submit", _pages_exchanged),
    ),
)

# -- in the scheduler ----------------------------------------------------------


def _one_too_many(original: Any, self: Served, indices: Any) -> None:
    """Take the token behind a prefix that was found for computed."""
    original(self, indices)
    if len(indices) and self.computed + 1 < self.length - 1:
        self.computed += 1


def _own_slots_kept(original: Any, self: Served) -> None:
    """Go on with slots that were given back as duplicates."""
    before = self.slots.copy()
    original(self)
    self.slots = before


def _commits_one_more(
    original: Any, self: UnifiedRadixCache, req: Request, *a: Any, **kw: Any
) -> Any:
    if req.kv_committed_len is not None:
        req.kv_committed_len += 1
    return original(self, req, *a, **kw)


def _no_namespace(original: Any, self: Served) -> None:
    self.cache_salt = None
    original(self)


def _early_window(
    original: Any, self: UnifiedRadixCache, req: Request, length: int, **kw: Any
) -> Any:
    return original(self, req, length + self.page_size, **kw)


async def _wrong_ring(original: Any, self: Planner, one: Served, end: int) -> Work:
    work: Work = await original(self, one, end)
    ring = one.req.mamba_ping_pong
    if work.row.keep_state is None or ring is None:
        return work
    other = ring[one.req.mamba_next_track ^ 1]
    row = _replaced(work.row, keep_state=other)
    return Work(work.one, row, work.start, work.end, work.samples, work.prefill, work.keeps)


def _replaced(row: Row, **fields: Any) -> Row:
    names = (
        "rid",
        "tokens",
        "slots",
        "window_slots",
        "window_start",
        "state",
        "keep_state",
        "logits",
        "load",
    )
    return Row(**{name: getattr(row, name) for name in names} | fields)


async def _slots_of_others(original: Any, self: Planner, one: Served, end: int) -> Work:
    """Build a row whose first two slots have changed places, and let the tree have them so."""
    if one.protected == 0 and one.covered >= 2 and one.computed == 0:
        one.slots[[0, 1]] = one.slots[[1, 0]]
    work: Work = await original(self, one, end)
    return work


def _drops_a_token(original: Any, self: Served) -> None:
    """Begin a new attempt without the last token of the answer so far."""
    if self.attempt and self.length > self.prompt_len + 1:
        self.tokens[self.length - 2] = self.tokens[self.length - 1]
        self.length -= 1
    original(self)


SCHEDULER: Final = (
    Slip(
        "one token more than was found is taken for computed",
        (LLAMA, GEMMA, LFM),
        _wrap(Served, "take_prefix", _one_too_many),
    ),
    Slip(
        "slots that were given back are read on",
        (LLAMA,),
        _wrap(Served, "see_cached", _own_slots_kept),
    ),
    Slip(
        "a token that was not computed is cached",
        (LLAMA,),
        _wrap(UnifiedRadixCache, "cache_finished_req", _commits_one_more),
    ),
    Slip("a namespace is lost", (LLAMA, QWEN), _wrap(Served, "begin", _no_namespace)),
    Slip(
        "a window is given back a page too early",
        (GEMMA,),
        _wrap(UnifiedRadixCache, "release_window", _early_window),
        "served anew",
    ),
    Slip(
        "a state is kept in the other slot of the ring",
        STATES,
        _wrap(Planner, "_work", _wrong_ring),
    ),
    Slip("two slots of a row change places", (LLAMA,), _wrap(Planner, "_work", _slots_of_others)),
    Slip(
        "a retracted request loses a token",
        (LLAMA,),
        _wrap(Served, "begin", _drops_a_token),
        "tokens of",
    ),
)


async def _ends_at_once(_: Any, self: Scheduler) -> None:
    board = self._board
    for one in board.all():
        if one.channel.wish is not None:
            await board.end(one, one.channel.wish)


EARLY: Final = (
    Slip(
        "a request is ended while a pass computes it",
        (LLAMA, QWEN),
        _wrap(Scheduler, "_end_asked", _ends_at_once),
        "let go",
    ),
)

__all__ = ("CACHE", "EARLY", "RUNNER", "SCHEDULER", "Slip")
