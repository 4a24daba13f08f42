"""The steps of an :class:`~support.oracle_driver.OracleDriver` that concern no request."""

from __future__ import annotations

from typing import Any

import torch

from radixtide.components.api import (
    AllocateParams,
    AllocateResult,
    EvictParams,
    EvictResult,
    InsertParams,
    MatchPrefixParams,
    MatchResult,
)
from radixtide.configs.errors import (
    DoubleFree,
    InvalidInput,
    OutOfSlots,
    RadixtideError,
    SlotError,
)
from support.oracle import FULL, MAMBA, SWA, Namespace, Page, Pair, Tokens
from support.oracle_driver import Held
from support.oracle_evict import Losses
from support.oracle_locks import OracleLocks
from support.oracle_recency import Use
from support.oracle_view import pages_of, slots_of


class OracleSteps(OracleLocks):
    """A driver with the calls on keys and slots too. Each ends with :meth:`settle`."""

    # -- match --------------------------------------------------------------------------

    def match(self, namespace: Namespace, tokens: Tokens, lock: bool = False) -> int:
        """Match a key, locked or not; return the length."""
        params = MatchPrefixParams(key=self.key(namespace, tokens), lock=lock)
        path, expected = self.expected_match(namespace, tokens)
        result = self.call("match", self.cache.match_prefix(params))
        self.check_match(result, namespace, tokens, path, expected)
        if lock:
            assert result.receipt is not None
            self.receipts.append(Held(result.receipt, self.oracle.lock(path, expected)))
        self.settle()
        return expected

    def expected_match(self, namespace: Namespace, tokens: Tokens) -> tuple[list[Page], int]:
        """Return the cached pages of a key, and how much of them a match must return.

        Matches end where nodes end, or where the key leaves the tree.
        """
        path = self.oracle.path(namespace, tokens)
        key = (namespace, tokens)
        borders = {node.end for node in self.seen if self._leads_through(node.name, key)}
        lengths = {*borders, len(path) * self.setup.page}
        expected = self.oracle.longest(path, lengths)
        assert expected <= self.oracle.longest(path, (page.depth for page in path))
        return path, expected

    @staticmethod
    def _leads_through(node: tuple[Namespace, Tokens], key: tuple[Namespace, Tokens]) -> bool:
        return node[0] == key[0] and key[1][: len(node[1])] == node[1]

    def check_match(
        self,
        result: MatchResult,
        namespace: Namespace,
        tokens: Tokens,
        path: list[Page],
        expected: int,
        reasons: set[str] | None = None,
    ) -> None:
        """Compare a match with the oracle's, and note its handle."""
        oracle, page = self.oracle, self.setup.page
        whole, units = len(path) * page, oracle.units(tokens)
        matched = len(result.device_indices)
        self.note_match(path, matched)
        assert matched == expected, f"matched {matched} of {tokens}, expected {expected}"
        covered = [one for one in path if one.depth <= matched]
        assert result.device_indices.tolist() == slots_of((one.full for one in covered), page)
        assert result.full_kv_hit_length == whole
        assert result.miss_length == units - matched
        cut = matched < whole
        if reasons is None:
            reasons = self._reasons(path, matched, units)
        # Where another component cut the match, Full's own reason is told beside it.
        full_reasons = self._reasons(path, whole, units) if cut else {None}
        assert result.full_miss_reason in full_reasons
        assert result.miss_reason.value in reasons, f"{result.miss_reason}, expected {reasons}"
        for name in (SWA, MAMBA):
            branch = getattr(result, f"{name}_branching_seqlen")
            if branch is not None:
                assert self.has(name)
                assert matched < branch <= whole
                assert branch % (self.setup.grid if name == MAMBA else page) == 0
        last = covered[-1] if covered else None
        if matched:
            self.recency.use(Use(namespace, tokens, matched))
        node = self.cache._tree.nodes[result.last_device_node.id]
        assert node.end == matched
        assert result.best_match_node == result.last_device_node
        self.handles.append((result.last_device_node, last, self.generation))

    def note_match(self, path: list[Page], matched: int) -> None:
        """Note what came up in a match."""
        covered = path[: matched // self.setup.page]
        bare = any(page.swa is None for page in covered)
        self.met["match beyond a gap"] += self.has(SWA) and bare
        self.met["match cut by a window"] += not matched and self.has(SWA) and bool(path)
        self.met["match cut to a state"] += (
            self.has(MAMBA) and 0 < matched < len(path) * self.setup.page
        )

    def _reasons(self, path: list[Page], matched: int, units: int) -> set[str]:
        whole = len(path) * self.setup.page
        if matched == units:
            return {"complete"}
        if matched < whole:
            names = {SWA: "window_gap", MAMBA: "no_state"}
            return {names[name] for name in self.oracle.refusals(path, whole)}
        if matched == self.oracle.aligned(units):
            return {"unaligned_tail"}
        return {"never_stored", "evicted"}

    # -- insert --------------------------------------------------------------------------

    def insert(
        self,
        namespace: Namespace,
        tokens: Tokens,
        given: list[Pair],
        prev: int = 0,
        evicted: int = 0,
        state: int | None = None,
        refused: type[RadixtideError] | None = None,
    ) -> None:
        """Insert a key from loose pages (those of ``[prev, end)``) and a loose state."""
        page, oracle = self.setup.page, self.oracle
        end = oracle.aligned(oracle.units(tokens))
        value = [-1] * prev + slots_of((pair.full for pair in given), page)
        indices = torch.tensor(value, dtype=torch.int64)
        fields: dict[str, Any] = {}
        if state is not None:
            fields["mamba_value"] = torch.tensor([state], dtype=torch.int64)
        if evicted:
            fields["component_evicted_seqlens"] = {SWA: evicted}
        params = InsertParams(
            key=self.key(namespace, tokens), value=indices, prev_prefix_len=prev, **fields
        )
        result = self.call("insert", self.cache.insert(params), refused)
        indices.fill_(-1)
        if result is not None:
            used = given[: (end - prev) // page]
            done = oracle.insert(namespace, tokens, used, prev, end, evicted)
            self.recency.use(Use(namespace, tokens, end, done.swa_adopted))
            self.loose = [pair for pair in self.loose if pair not in used]
            self.give_back(done.freed_full, done.freed_swa)
            assert (result.prefix_len, result.inserted_len) == (done.matched, end)
            assert (result.adopted, result.duplicate) == (done.adopted, done.duplicate)
            others = dict(result.component_adopted)
            assert others.pop(SWA, ()) == done.swa_adopted
            repaired = [part for part in done.swa_adopted if part[0] < done.matched]
            self.met["window repaired"] += len(repaired)
            self.met["window repaired under a lock"] += any(
                page.locks[SWA] and page.swa is not None and start < page.depth <= done.matched
                for start, _ in repaired
                for page in oracle.path(namespace, tokens)
            )
            last = oracle.pages.get(oracle.name(namespace, tokens, end))
            existed = last is not None and last.state is not None
            if state is not None:
                assert last is not None
                self.loose_states.remove(state)
                assert others.pop(MAMBA, ()) == (() if existed else ((end - 1, end),))
                assert result.mamba_exist is existed
                if existed:
                    self.met["state was there"] += 1
                    self.free_pages[MAMBA].add(state)
                else:
                    last.state = state
            assert not any(others.values()), others
            if self.setup.cap:
                self.take_capped(namespace, tokens)
            self.handles.append((result.last_device_node, last, self.generation))
        self.settle()

    def take_capped(self, namespace: Namespace, tokens: Tokens) -> None:
        """Take over the states that an insert dropped because a path had too many."""
        oracle = self.oracle
        losses = self.take_losses(MAMBA)
        assert not losses.gone
        assert not losses.tombstones
        path = oracle.path(namespace, tokens)
        for page in losses.states:
            assert page in path, "a state of another path was dropped"
            # Forks and ends stay.
            children = [one for one in oracle.below(page) if one.depth == page.depth + oracle.page]
            assert len(children) == 1, f"dropped at a fork or at an end: {page.name}"
        if losses.states:
            self.met["states capped"] += 1
            left = sum(page.state is not None for page in path)
            assert left >= self.setup.cap, "more states were dropped than the cap asks for"

    # -- slots ---------------------------------------------------------------------------

    def shortage(self, wanted: dict[str, int]) -> type[RadixtideError] | None:
        """Return OutOfSlots where not even evicting everything would make room for `wanted`."""
        for name, slots in wanted.items():
            sizes = self.sizes(name)
            if slots > sizes["free"] + sizes["evictable"]:
                return OutOfSlots
        return None

    def allocate(self, tokens: int, swa_tokens: int | None = None, states: int = 0) -> bool:
        """Allocate loose slots; return whether there were any."""
        page = self.setup.page
        count = -(-tokens // page)
        swa_tokens = None if swa_tokens is None else min(swa_tokens, tokens)
        with_swa = tokens if swa_tokens is None else swa_tokens
        # The last ones get SWA, in whole pages.
        first = (tokens - with_swa) // page if with_swa else count
        wanted = {FULL: count * page, SWA: (count - first) * page, MAMBA: states}
        wanted = {name: slots for name, slots in wanted.items() if self.has(name) and slots}
        free = {name: self.sizes(name)["free"] for name in wanted}
        refused = self.shortage(wanted)
        params = AllocateParams(num_tokens=tokens, swa_num_tokens=swa_tokens, mamba_num=states)
        result = self.call("allocate", self.cache.allocate(params), refused)
        if result is not None:
            short = {name: slots - free[name] for name, slots in wanted.items()}
            self.take_evicted(result.evicted, short)
            self.loose += self.taken_pairs(result, 0, count, first if self.has(SWA) else count)
            self.loose_states += self.taken_states(result, states)
        self.settle()
        return result is not None

    def taken_pairs(
        self, result: AllocateResult, room: int, count: int, without: int
    ) -> list[Pair]:
        """Return the fresh pages that an allocation handed out, and note that they are taken.

        `room`: slots before them; `count`: how many there must be; `without`: the first so many
        have no SWA.
        """
        page = self.setup.page
        full = pages_of(result.indices[room:].numpy(), page)
        assert len(full) == count
        self.take(FULL, list(full))
        swa: list[int | None] = [None] * count
        if self.has(SWA) and result.swa_indices is not None:
            slots = result.swa_indices[room:].numpy()
            assert len(slots) == count * page
            assert (slots[: without * page] == -1).all()
            swa[without:] = pages_of(slots[without * page :], page)
            self.take(SWA, [number for number in swa if number is not None])
        else:
            assert without == count
        result.indices.fill_(-1)
        return [Pair(one, other) for one, other in zip(full, swa, strict=True)]

    def taken_states(self, result: AllocateResult, count: int) -> list[int]:
        """Return the states that an allocation handed out, and note that they are taken."""
        states = [] if result.mamba_indices is None else result.mamba_indices.tolist()
        assert len(states) == count
        if states:
            self.take(MAMBA, states)
        return states

    def free(self, pairs: list[Pair]) -> None:
        """Free loose pages whole."""
        slots = slots_of((pair.full for pair in pairs), self.setup.page)
        self.call("free", self.cache.free(torch.tensor(slots, dtype=torch.int64)))
        self.loose = [pair for pair in self.loose if pair not in pairs]
        self.give_back(
            [pair.full for pair in pairs], [pair.swa for pair in pairs if pair.swa is not None]
        )
        self.settle()

    def free_swa(self, pairs: list[Pair], offsets: list[int]) -> None:
        """Free the SWA half of loose pages, named by some token of each page."""
        page = self.setup.page
        slots = [pair.full * page + at for pair, at in zip(pairs, offsets, strict=True)]
        indices = torch.tensor(slots, dtype=torch.int64)
        self.call("free swa", self.cache.free(indices, component=SWA))
        for pair in pairs:
            if pair.swa is not None:
                self.give_back([], [pair.swa])
                pair.swa = None
        self.settle()

    def free_states(self, states: list[int]) -> None:
        """Free loose states."""
        indices = torch.tensor(states, dtype=torch.int64)
        self.call("free mamba", self.cache.free(indices, component=MAMBA))
        self.loose_states = [slot for slot in self.loose_states if slot not in states]
        self.free_pages[MAMBA].update(states)
        self.settle()

    def free_wrongly(self, component: str, number: int) -> None:
        """Free a page (for SWA: of the Full pool) that is not loose."""
        named = FULL if component == SWA else component
        unit = self.setup.unit(named)
        indices = torch.tensor(slots_of([number], unit), dtype=torch.int64)
        kind = DoubleFree if number in self.free_pages[named] else SlotError
        self.call(f"free {component}", self.cache.free(indices, component=component), kind)
        self.settle()

    # -- eviction ------------------------------------------------------------------------

    def evict(self, tokens: int = 0, swa: int = 0, states: int = 0) -> None:
        """Evict for every pool at once."""
        targets = {FULL: tokens, SWA: swa, MAMBA: states}
        targets = {name: slots for name, slots in targets.items() if self.has(name)}
        params = EvictParams(
            num_tokens=tokens,
            swa_num_tokens=swa if self.has(SWA) else 0,
            mamba_num=states if self.has(MAMBA) else 0,
        )
        result = self.call("evict", self.cache.evict(params))
        losses = self.take_evicted(result, targets)
        asked = [name for name, slots in targets.items() if slots > 0]
        if len(asked) == 1 and losses.freed[asked[0]]:
            # The last victim was needed, whichever it was.
            name = asked[0]
            assert losses.freed[name] - losses.most[name] < targets[name], "evicted too much"
        self.settle()

    def take_evicted(self, result: EvictResult, targets: dict[str, int]) -> Losses:
        """Take over an eviction, and compare its amounts with what was wanted and told."""
        wanted = [name for name, slots in targets.items() if slots > 0]
        most = {name: min(targets[name], self.oracle.evictable(name)) for name in wanted}
        target = targets[wanted[0]] if len(wanted) == 1 else None
        losses = self.take_losses(*wanted, target=target)
        freed = losses.freed
        assert result.others == {}
        assert freed == {
            FULL: result.num_tokens_evicted,
            SWA: result.swa_num_tokens_evicted,
            MAMBA: result.mamba_num_evicted,
        }
        for name in wanted:
            assert freed[name] >= most[name], f"{name}: evicted {freed}, wanted {targets}"
        return losses

    # -- misuse -----------------------------------------------------------------------------

    def insert_with_tail_and_state(
        self, namespace: Namespace, tokens: Tokens, given: list[Pair], state: int
    ) -> None:
        """Insert a state with a key that does not end where a page ends: refused."""
        assert self.oracle.units(tokens) % self.setup.page
        self.insert(namespace, tokens, given, state=state, refused=InvalidInput)
