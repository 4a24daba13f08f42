"""Drives a real cache and the model through the same calls and compares them after every one.

Every method is one step: it makes one call, compares the answer with the model's, then compares the
whole content (which prefixes are cached, by which slots, cut into which nodes), sizes and counts,
and audits. The loop is private and its clock is moved by hand, so a run repeats exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import torch

from radixtide import UnifiedRadixCache
from radixtide.components.api import (
    LockReceipt,
    NodeHandle,
)
from radixtide.components.request import Request
from radixtide.configs.errors import (
    OutOfSlots,
    RadixtideError,
)
from radixtide.configs.schema import (
    EvictionConfig,
    FullPoolConfig,
    LimitsConfig,
    PoolsConfig,
    RequestPoolConfig,
)
from radixtide.tree.key import RadixKey
from radixtide.tree.node import Node
from support.caches import make_config, system_of
from support.model import Name, Namespace, Page, Refusal, Tokens
from support.model_calls import Held, ModelCache
from support.stamps import Stamps

T = TypeVar("T")
W = TypeVar("W")

NAMESPACES: tuple[Namespace, ...] = ((None, None), ("a", None), (None, "a"), ("", "a"))
"""Close relatives on purpose: only the framing keeps them apart."""


@dataclass(frozen=True)
class Setup:
    """One configuration of a run.

    ``stored``: the layout of real bytes, or none. ``settle_every``: steps between full comparisons.
    """

    page: int = 4
    pages: int = 16
    bigram: bool = False
    delivery: Literal["direct", "queued"] = "direct"
    policy: str = "lru"
    budget_pages: int = 4
    stored: Literal["mha", "mla"] | None = None
    settle_every: int = 1

    @property
    def eviction(self) -> EvictionConfig:
        """The eviction section; thresholds that make the segments of slru and tlru differ."""
        return EvictionConfig(
            policy=self.policy,
            slru_protected_threshold=2,
            tlru_threshold=2 * self.page,
            tlru_next_prompt_estimate=self.page,
        )


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock moves only when it is told to."""

    now = 1000.0

    def time(self) -> float:
        """Return the clock's reading in seconds."""
        return self.now


@dataclass(eq=False)
class Live:
    """A running request.

    ``row``: its slots by position where it allocates without the cache; ``spare``: what is left of
    the last page of them. ``shown``: how many slots ``prefix_indices`` has, where that is more than
    the protected ones.
    """

    req: Request
    held: Held
    by_row: bool = False
    row: list[int] = field(default_factory=list)
    spare: list[int] = field(default_factory=list)
    shown: int | None = None

    @property
    def tokens(self) -> Tokens:
        """Input and output."""
        return (*(int(t) for t in self.req.origin_input_ids), *self.req.output_ids)

    @property
    def slots(self) -> int:
        """How many leading tokens have slots."""
        return len(self.row) if self.by_row else self.held.protected + self.held.used


class Driver:
    """A cache and its model; close it when done. ``transcript``: one line an answer."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        size = setup.page * setup.pages
        context = size * 2
        pool: dict[str, Any] = {"size": size, "holds_bytes": setup.stored is not None}
        if setup.stored is not None:
            pool |= {"kind": setup.stored, "layers": 2, "dtype": "float32"}
            pool |= {"kv_heads": 2, "head_dim": 4} if setup.stored == "mha" else {"latent_dim": 6}
        config = make_config(
            page_size=setup.page,
            bigram=setup.bigram,
            delivery=setup.delivery,
            eviction=setup.eviction,
            pin_budget=setup.budget_pages * setup.page,
            # A caller that gives up its turn would let calls made later overtake it.
            limits=LimitsConfig(call_timeout_s=20.0, immediate_calls=1_000_000_000),
            pools=PoolsConfig(
                full=FullPoolConfig(**pool),
                requests=RequestPoolConfig(max_requests=8, max_context=context),
            ),
        )
        self.loop = SteppedLoop()
        self.cache = UnifiedRadixCache(config)
        self.run(self.cache.__aenter__())
        self.model = ModelCache(
            setup.page,
            setup.pages,
            setup.bigram,
            setup.eviction,
            setup.budget_pages * setup.page,
            context,
        )
        self.model.now = self.loop.now
        self.transcript: list[str] = []
        self.loose: list[int] = []
        self.handles: list[tuple[NodeHandle, Page | None, int]] = []
        self.receipts: list[tuple[LockReceipt, Page | None]] = []
        self.released: list[LockReceipt] = []
        self.live: list[Live] = []
        self.done: list[Live] = []
        self.generation = 0
        self.started = 0
        self.evicted = 0
        self.settled = 0
        self.stamps = (
            Stamps(self.cache.kv_pool, setup.bigram) if self.cache.kv_pool is not None else None
        )
        # The cache's own bytes of each namespace, to read nodes back by.
        self._namespaces = {RadixKey([1], *names).namespace: names for names in NAMESPACES}

    def close(self) -> None:
        """Close the cache and the loop; no error may have gone unheard."""
        self.discard()
        assert not system_of(self.cache).unheard_errors

    def discard(self) -> None:
        """Close the loop of a cache that may be broken."""
        try:
            self.run(self.cache.close())
        finally:
            self.loop.close()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run one coroutine to its end."""
        return self.loop.run_until_complete(call)

    def step(
        self, name: str, call: Coroutine[Any, Any, T], expect: Callable[[], W]
    ) -> tuple[T, W] | None:
        """Make one call and ask the model; None when both refuse it alike."""
        refused: RadixtideError | None = None
        answer: T | None = None
        try:
            answer = self.run(call)
        except RadixtideError as error:
            refused = error
        # A refusal names no cache and no time, so it repeats too.
        shown = repr(refused) if refused is not None else plain(answer)
        self.transcript.append(f"{name} {shown}")
        wanted: Refusal | None = None
        expected: W | None = None
        try:
            expected = expect()
        except Refusal as refusal:
            wanted = refusal
        if wanted is not None:
            assert type(refused) is wanted.kind, f"{name}: {shown}, expected {wanted.kind}"
            if isinstance(refused, OutOfSlots):
                assert refused.pools == {"full": wanted.numbers}
            return None
        assert refused is None, f"{name}: unexpected {refused!r}"
        # None is an answer too, hence no check of it.
        return answer, expected  # type: ignore[return-value]  # T may be None

    def refuses(
        self, name: str, call: Coroutine[Any, Any, Any], kind: type[RadixtideError]
    ) -> None:
        """Make a call that must be refused and change nothing."""

        def refuse() -> None:
            raise Refusal(kind)

        self.step(name, call, refuse)
        self.settle()

    def key(self, namespace: Namespace, tokens: Tokens) -> RadixKey:
        """Return the real key."""
        return RadixKey(tokens, *namespace, is_bigram=self.setup.bigram)

    def settle(self) -> None:
        """Compare everything that can be seen, and audit, every so many steps."""
        self.settled += 1
        if self.settled % self.setup.settle_every:
            return
        model = self.model
        report = self.run(self.cache.audit())
        assert report.ok, report.violations
        stats = self.run(self.cache.stats())
        device = msgspec.structs.asdict(stats.pools["full"]["device"])
        assert device == {**model.sizes(), "in_flight": 0}
        assert stats.counters["evicted_units"] == self.evicted
        assert stats.pinned == model.pinned
        holding = [live for live in self.live if live.held.holds]
        assert stats.requests == len(holding)
        assert stats.receipts == len(self.receipts) + sum(live.held.locked for live in holding)
        expected = {
            last.name: (slots_of(run), last.hits, last.priority)
            for last in model.pages.values()
            if last.cut and (run := model.run(last))
        }
        assert self.nodes() == expected
        for live in holding:
            self._check_request(live)

    def _check_request(self, live: Live) -> None:
        held, req = live.held, live.req
        protected = self._protected(live)
        assert req.cache_protected_len == held.protected == len(protected)
        if held.locked:
            assert req.prefix_indices is not None
            shown = protected + (
                held.own[: held.used] if not live.by_row else live.row[held.protected :]
            )
            assert req.prefix_indices.tolist() == shown[: live.shown or held.protected]
            if self.stamps is not None:
                self.stamps.verify(
                    req.prefix_indices[: held.protected], held.namespace, live.tokens
                )
        if req.req_pool_idx is not None:
            wanted = live.row if live.by_row else protected + held.own[: held.used]
            row = self.cache.req_to_token_pool.rows[req.req_pool_idx]
            assert row[: len(wanted)].tolist() == wanted

    def nodes(self) -> dict[Name, tuple[tuple[int, ...], int, int]]:
        """Return every node of the real tree by name: its slots, hits and priority."""
        found: dict[Name, tuple[tuple[int, ...], int, int]] = {}
        tree = self.cache._state.tree
        stack: list[tuple[Node, Namespace, Tokens]] = [
            (node, self._namespaces[node.edge[: len(node.edge) - tree.edge_bytes]], ())
            for node in tree.root.children.values()
        ]
        while stack:
            node, namespace, above = stack.pop()
            piece = np.frombuffer(node.piece, dtype=np.int64).tolist()
            tokens = (*above[: node.start], *piece)
            value = node.component_data[0].value
            assert value is not None
            found[namespace, tokens] = (tuple(value.tolist()), node.hits, node.priority)
            stack.extend((child, namespace, tokens) for child in node.children.values())
        return found

    def _protected(self, live: Live) -> list[int]:
        lock = live.held.lock
        pages = [] if lock is None else list(self.model.above(lock))
        return [slot for page in reversed(pages) for slot in page.slots]


def slots_of(run: list[Page]) -> tuple[int, ...]:
    """Return the slots of a node whose pages come upward."""
    return tuple(slot for page in reversed(run) for slot in page.slots)


def plain(value: Any) -> str:
    """Return an answer as text that is the same in every run."""
    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, LockReceipt):
        # Its cache number counts the caches of the process.
        return f"receipt {value.id} {value.node}"
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        return "(" + ", ".join(f"{name}={plain(part)}" for name, part in fields.items()) + ")"
    if isinstance(value, tuple):
        return "(" + ", ".join(plain(part) for part in value) + ")"
    return repr(value)
