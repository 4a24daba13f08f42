"""Drives a real hybrid cache and the oracle through the same calls, and compares everything.

A step is one call. What the oracle can not know (which victims an eviction took, where nodes end)
is read from the tree, and checked to be allowed before it is taken over. Everything else it keeps
by itself, from the calls and their results, and after each step the whole cache must agree with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch

from radixtide import UnifiedRadixCache
from radixtide.components.api import LockReceipt, NodeHandle
from radixtide.components.request import Request
from radixtide.configs.errors import OutOfSlots, RadixtideError
from radixtide.tiers.slots import ANONYMOUS, FREE, TREE
from radixtide.tree.key import RadixKey
from support.caches import system_of
from support.driver import NAMESPACES, SteppedLoop, plain
from support.oracle import FULL, MAMBA, SWA, Lock, Name, Namespace, Oracle, Page, Pair, Tokens
from support.oracle_evict import Losses, find_losses
from support.oracle_recency import Recency
from support.oracle_setup import Contents, HybridSetup
from support.oracle_view import Seen, by_page, look, protection_faults, slots_of


@dataclass(eq=False)
class Live:
    """A running request and what it holds by the oracle's books.

    ``by_row``: its scheduler allocates without it, and writes its row: its pages are the caller's.
    ``own``: its pages past ``protected``, of which ``used`` units are asked for. ``working``,
    ``tracked``: its state slots. ``last``, ``previous``: the lengths that the tracked states are
    valid for; ``turn``: which tracked slot is written next. ``swa_evicted``: below it the SWA of
    its own tokens is given back.
    """

    req: Request
    namespace: Namespace
    by_row: bool = False
    protected: int = 0
    lock: Lock | None = None
    own: list[Pair] = field(default_factory=list)
    used: int = 0
    swa_evicted: int = 0
    working: int | None = None
    tracked: list[int] = field(default_factory=list)
    last: int | None = None
    previous: int | None = None
    turn: int = 0

    @property
    def holds(self) -> bool:
        """Whether the cache's ledger has it."""
        allocated = self.used and not self.by_row
        return bool(self.lock is not None or allocated or self.states)

    @property
    def tokens(self) -> Tokens:
        """Input and output."""
        return (*(int(t) for t in self.req.origin_input_ids), *self.req.output_ids)

    @property
    def covered(self) -> int:
        """How many leading tokens have slots."""
        return self.protected + self.used

    @property
    def states(self) -> list[int]:
        """Its state slots."""
        return [*([] if self.working is None else [self.working]), *self.tracked]


@dataclass(frozen=True)
class Held:
    """A receipt that the driver holds."""

    receipt: LockReceipt
    lock: Lock


class OracleDriver:
    """A cache and its oracle; close it when done. ``transcript``: one line an answer.

    ``audits``: whether the cache audits itself too, beside the comparison.
    ``met``: how often each outcome came up that is not to be missed.
    """

    def __init__(self, setup: HybridSetup) -> None:
        self.setup = setup
        self.loop = SteppedLoop()
        self.cache = UnifiedRadixCache(setup.config())
        self.run(self.cache.__aenter__())
        self.oracle = Oracle(setup.components, setup.page, setup.window, setup.bigram)
        self.free_pages = {name: set(range(count)) for name, count in setup.counts.items()}
        self.loose: list[Pair] = []
        self.loose_states: list[int] = []
        self.handles: list[tuple[NodeHandle, Page | None, int]] = []
        self.receipts: list[Held] = []
        self.released: list[LockReceipt] = []
        self.pins: dict[tuple[Namespace, Tokens], Lock] = {}
        self.live: list[Live] = []
        self.generation = 0
        self.started = 0
        self.settled = 0
        self.audits = True
        self.transcript: list[str] = []
        self.met: Counter[str] = Counter()
        self.seen: list[Seen] = []
        self.recency = Recency(self.oracle)
        self.contents = Contents(self.cache)
        self._namespaces = {RadixKey([1], *names).namespace: names for names in NAMESPACES}

    # -- life -------------------------------------------------------------------------

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

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run one coroutine to its end."""
        return self.loop.run_until_complete(call)

    def call(
        self,
        name: str,
        call: Coroutine[Any, Any, Any],
        refused: type[RadixtideError] | None = None,
    ) -> Any:
        """Make one call: it must be refused with `refused` (None is returned), or not at all."""
        error: RadixtideError | None = None
        answer = None
        try:
            answer = self.run(call)
        except RadixtideError as refusal:
            error = refusal
        shown = plain(answer) if error is None else repr(error)
        self.transcript.append(f"{name} -> {shown}")
        expected = None if refused is None else refused.__name__
        got = None if error is None else type(error).__name__
        assert got == expected, f"{name}: {shown}, expected {expected or 'an answer'}"
        if isinstance(error, OutOfSlots):
            self._check_shortage(error)
        return answer

    def _check_shortage(self, error: OutOfSlots) -> None:
        for name, numbers in error.pools.items():
            known = {key: value for key, value in numbers.items() if key != "wanted"}
            assert known == self.sizes(name), f"{error!r}: {name} has {self.sizes(name)}"

    def key(self, namespace: Namespace, tokens: Tokens) -> RadixKey:
        """Return the real key."""
        return RadixKey(tokens, *namespace, is_bigram=self.setup.bigram)

    # -- books --------------------------------------------------------------------------

    def has(self, component: str) -> bool:
        """Return whether the cache has a component."""
        return component in self.setup.components

    def sizes(self, component: str) -> dict[str, int]:
        """Return the sizes of a pool in slots, as the cache names them."""
        unit, oracle = self.setup.unit(component), self.oracle
        parts = {
            "free": len(self.free_pages[component]) * unit,
            "evictable": oracle.evictable(component),
            "protected": oracle.protected(component),
        }
        size = self.setup.counts[component] * unit
        return {**parts, "held": size - sum(parts.values()), "size": size}

    def owners(self, component: str) -> dict[int, str]:
        """Return whose each page of a pool is; no page has two owners."""
        claims: list[tuple[int | None, str]] = [
            (number, "free") for number in self.free_pages[component]
        ]
        for page in self.oracle.pages.values():
            number = {FULL: page.full, SWA: page.swa, MAMBA: page.state}[component]
            claims.append((number, "tree"))
        pairs = [("loose", self.loose)]
        pairs += [("loose" if one.by_row else one.req.rid, one.own) for one in self.live]
        if component == MAMBA:
            claims += [(slot, "loose") for slot in self.loose_states]
            claims += [(slot, one.req.rid) for one in self.live for slot in one.states]
        else:
            for whose, owned in pairs:
                claims += [(one.full if component == FULL else one.swa, whose) for one in owned]
        found = [(number, whose) for number, whose in claims if number is not None]
        assert len(dict(found)) == len(found), f"{component}: a page has two owners: {found}"
        return dict(found)

    def give_back(self, full: list[int], swa: list[int]) -> None:
        """Note that pages are free again."""
        self.free_pages[FULL].update(full)
        if swa:
            self.free_pages[SWA].update(swa)

    def take(self, component: str, numbers: list[int]) -> None:
        """Note that pages were handed out: they must have been free."""
        free = self.free_pages[component]
        assert len(set(numbers)) == len(numbers)
        assert free.issuperset(numbers), f"{component}: not free, yet handed out: {numbers}"
        free.difference_update(numbers)

    # -- evictions ------------------------------------------------------------------------

    def look(self) -> list[Seen]:
        """Return what is on the nodes of the real tree."""
        return look(self.cache, self._namespaces)

    def take_losses(
        self, *wanted: str, target: int | None = None, spared: Iterable[Name] = ()
    ) -> Losses:
        """Take over what an eviction for the pools of `wanted` took, when that was allowed.

        `target`: slots to be freed of the only pool that was asked for, where the order is to be
        checked; `spared`: pages that it had to pass over.
        """
        oracle = self.oracle
        nodes = self.look()
        losses = find_losses(oracle, nodes, self.seen)
        if target is not None and wanted[0] != FULL:
            due = self.recency.victims(wanted[0], target, self.seen, spared)
            lost = losses.ends(wanted[0])
            assert lost == due, f"{wanted[0]}: lost {lost}, the least recently used are {due}"
        faults = losses.faults(oracle, set(wanted))
        assert not faults, "\n".join(faults)
        self.met["inner node lost its window"] += len(losses.tombstones)
        self.met["inner node lost its state"] += len(losses.states)
        self.met["leaf went whole"] += len(losses.nodes)
        for page in losses.gone:
            del oracle.pages[page.name]
            self.give_back([page.full], [] if page.swa is None else [page.swa])
            if page.state is not None:
                self.free_pages[MAMBA].add(page.state)
        for page in losses.swa:
            assert page.swa is not None
            self.give_back([], [page.swa])
            page.swa = None
        for page in losses.states:
            assert page.state is not None
            self.free_pages[MAMBA].add(page.state)
            page.state = None
        return losses

    # -- comparison -------------------------------------------------------------------------

    def settle(self) -> None:
        """Compare everything that can be seen with the oracle, and audit, every so many steps."""
        self.seen = nodes = self.look()
        self.recency.catch_up(nodes)
        self.settled += 1
        if self.settled % self.setup.audit_every:
            return
        if self.audits:
            report = self.run(self.cache.audit())
            assert report.ok, report.violations
        faults = protection_faults(nodes)
        assert not faults, "\n".join(faults)
        self._check_nodes(nodes)
        stats = self.run(self.cache.stats())
        assert set(stats.pools) == set(self.setup.components)
        for name in self.setup.components:
            pool = msgspec.structs.asdict(stats.pools[name]["device"])
            assert pool == {**self.sizes(name), "in_flight": 0}, name
            self._check_owners(name)
        if self.has(SWA):
            self._check_pairs()
        holding = [live for live in self.live if live.holds]
        assert stats.requests == len(holding)
        locked = sum(live.lock is not None for live in holding)
        assert stats.receipts == len(self.receipts) + locked
        for live in holding:
            self._check_request(live)

    def _check_nodes(self, nodes: list[Seen]) -> None:
        oracle = self.oracle
        real = by_page(nodes, self.setup.page, oracle.lookahead)
        known = {name: (page.full, page.swa, page.state) for name, page in oracle.pages.items()}
        if real != known:
            different = [
                f"{name}: tree {real.get(name)}, oracle {known.get(name)}"
                for name in {**real, **known}
                if real.get(name) != known.get(name)
            ]
            raise AssertionError("(full, swa, state) differ:\n" + "\n".join(different))
        for node in nodes:
            if node.state is not None:
                self.contents.verify(node.state, node.name)
            path = oracle.path(*node.name)
            for name, count in node.locks.items():
                # A lock's window begins at a node's border, so a node is covered whole or not.
                covered = {bool(page.locks[name]) for page in path if page.depth > node.start}
                if name == MAMBA:
                    covered = {bool(path[-1].locks[name])}
                assert covered == {count > 0}, f"{name} counts {count} on {node}, not {covered}"

    def _check_owners(self, component: str) -> None:
        at = self.setup.components.index(component)
        books = self.cache._components[at].allocator.owners().tolist()
        owners = self.owners(component)
        names = {FREE: "free", TREE: "tree", ANONYMOUS: "loose"}
        for number, code in enumerate(books):
            whose = owners.get(number)
            assert whose == names.setdefault(code, whose or "nobody"), (
                f"{component}: page {number} is {names[code]}'s by the books, {whose}'s in truth"
            )

    def _check_pairs(self) -> None:
        page = self.setup.page
        pairs = [Pair(one.full, one.swa) for one in self.oracle.pages.values()]
        pairs += [*self.loose, *(one for live in self.live for one in live.own)]
        expected = np.full(self.setup.pages * page, -1, dtype=np.int64)
        for pair in pairs:
            if pair.swa is not None:
                expected[slots_of([pair.full], page)] = slots_of([pair.swa], page)
        everything = torch.arange(len(expected), dtype=torch.int64)
        found = self.run(self.cache.component_slots(SWA, everything))
        assert found.tolist() == expected.tolist()

    def protected_pages(self, live: Live) -> list[Page]:
        """Return the tree's pages that a request's lock covers."""
        return live.lock.pages[FULL] if live.lock is not None else []

    def _check_request(self, live: Live) -> None:
        req, page = live.req, self.setup.page
        shared = slots_of((one.full for one in self.protected_pages(live)), page)
        assert req.cache_protected_len == live.protected == len(shared)
        own = slots_of((one.full for one in live.own), page)[: live.used]
        if live.lock is not None:
            assert req.prefix_indices is not None
            assert req.prefix_indices.tolist()[: live.protected] == shared
        if req.req_pool_idx is not None:
            row = self.cache.req_to_token_pool.rows[req.req_pool_idx].tolist()
            assert row[: live.covered] == shared + own
        if self.has(MAMBA):
            assert req.mamba_pool_idx == live.working
            assert list(req.mamba_ping_pong or []) == live.tracked
        if self.has(SWA):
            assert req.swa_evicted_seqlen == live.swa_evicted
