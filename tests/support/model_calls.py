"""The model's calls that own something: slots, pins and requests, over :mod:`support.model`."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixtide.configs.errors import Busy, InvalidInput, InvalidRequest, OutOfSlots, PinRefused
from radixtide.configs.schema import EvictionConfig
from support.model import Insertion, Match, Model, Name, Namespace, Page, Refusal, Tokens


@dataclass(slots=True, eq=False)
class Held:
    """What a request holds. ``own``: its slots past ``protected``, of which ``used`` are used."""

    namespace: Namespace
    protected: int = 0
    locked: bool = False
    lock: Page | None = None
    own: list[int] = field(default_factory=list)
    used: int = 0
    counted: int = 0

    @property
    def holds(self) -> bool:
        """Whether the cache's ledger has it."""
        return self.locked or self.used > 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """An allocation: slots of the room, fresh pages to be told, what was evicted."""

    room: list[int]
    pages: int
    evicted: int


class ModelCache(Model):
    """The whole cache, one call after the other."""

    def __init__(
        self,
        page: int,
        pages: int,
        bigram: bool,
        eviction: EvictionConfig,
        budget: int,
        max_context: int,
    ) -> None:
        super().__init__(page, pages, bigram, eviction)
        self.budget = budget
        self.max_context = max_context
        self.loose: set[int] = set()
        self.pins: dict[Name, tuple[Page, float]] = {}
        self.now = 0.0

    def insert_loose(
        self,
        namespace: Namespace,
        tokens: Tokens,
        value: list[int],
        prev: int,
        priority: int,
    ) -> Insertion:
        """Insert slots that are held outside of requests."""
        end = self.aligned(self.units(tokens))
        if prev % self.page or prev < 0 or len(value) < end:
            raise Refusal(InvalidInput)
        if prev > min(len(self.path(namespace, tokens)) * self.page, end):
            raise Refusal(InvalidInput)
        done = self.insert(namespace, tokens, value, 0, prev, prev, priority)
        self.loose -= self.numbers(value[prev:end])
        self.free |= self.numbers(done.duplicates)
        return done

    def evict(self, target: int) -> tuple[int, list[Name]]:
        """Evict on demand."""
        if target < 0:
            raise Refusal(InvalidInput)
        self.expire_pins()
        return self.evict_units(target)

    # -- pins -----------------------------------------------------------------------------

    @property
    def pinned(self) -> int:
        """Slots that pins keep."""
        return sum(self.page for page in self.pages.values() if page.pins)

    def pin(self, namespace: Namespace, tokens: Tokens, ttl: float) -> tuple[int, int]:
        """Pin the cached part of a key; return its length and the budget left."""
        if ttl <= 0:
            raise Refusal(InvalidInput)
        self.expire_pins()
        known = self.pins.get((namespace, tokens))
        path = self.path(namespace, tokens)
        last = known[0] if known is not None else None
        if last is None or len(path) * self.page > last.depth:
            cost = sum(self.page for page in path if not page.pins)
            if not path or self.pinned + cost > self.budget:
                raise Refusal(PinRefused)
            last = path[-1]
            last.cut = True
            self.lock(last)
            for page in path:
                page.pins += 1
            # More is cached than when it was pinned: the new pin covers the old one.
            self.unpin(namespace, tokens)
        self.pins[namespace, tokens] = (last, self.now + ttl)
        return last.depth, self.budget - self.pinned

    def unpin(self, namespace: Namespace, tokens: Tokens) -> bool:
        """Let a pinned key go."""
        known = self.pins.pop((namespace, tokens), None)
        if known is None:
            return False
        for page in self.above(known[0]):
            page.pins -= 1
        self.unlock(known[0])
        return True

    def expire_pins(self) -> None:
        """Let go of pins whose time is over (the cache does so when room is needed)."""
        for namespace, tokens in [key for key, pin in self.pins.items() if pin[1] <= self.now]:
            self.unpin(namespace, tokens)

    # -- slots --------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the pool in slots, as ``stats()`` names them."""
        protected = sum(self.page for page in self.pages.values() if page.locks)
        cached = len(self.pages) * self.page
        free = len(self.free) * self.page
        return {
            "free": free,
            "evictable": cached - protected,
            "protected": protected,
            "held": self.size - free - cached,
            "size": self.size,
        }

    def allocate(self, wanted: int, held: Held | None, has_row: bool = False) -> Allocation:
        """Plan an allocation and evict for it; :meth:`take` is then told the pages."""
        if wanted < 0:
            raise Refusal(InvalidInput)
        if held is not None and has_row and held.protected + held.used + wanted > self.max_context:
            raise Refusal(InvalidRequest)
        room = held.own[held.used : held.used + wanted] if held is not None else []
        pages = -(-(wanted - len(room)) // self.page)
        evicted = 0
        if pages > len(self.free):
            self.expire_pins()
            sizes = self.sizes()
            need = pages * self.page
            if need > sizes["free"] + sizes["evictable"]:
                raise Refusal(OutOfSlots, {"wanted": need, **sizes})
            evicted, _ = self.evict_units(need - sizes["free"])
        return Allocation(room, pages, evicted)

    def take(self, wanted: int, held: Held | None, fresh: list[int]) -> None:
        """Note the fresh pages that an allocation was answered with: they must have been free."""
        numbers = self.numbers(fresh)
        assert len(numbers) * self.page == len(set(fresh)) == len(fresh)
        assert numbers <= self.free, f"slots that are not free were handed out: {fresh}"
        self.free -= numbers
        if held is None:
            self.loose |= numbers
        else:
            held.own += fresh
            held.used += wanted

    def release_loose(self, numbers: set[int]) -> None:
        """Free pages held outside of requests."""
        self.loose -= numbers
        self.free |= numbers

    # -- requests -------------------------------------------------------------------------

    def start(self, held: Held, tokens: Tokens, has_row: bool = False) -> Match:
        """Match with a lock that the request owns."""
        if held.holds or (has_row and self.units(tokens) > self.max_context):
            raise Refusal(InvalidRequest)
        found = self.match(held.namespace, tokens, held.counted)
        self.lock(found.end)
        held.locked, held.lock, held.protected = True, found.end, len(found.slots)
        held.counted = max(held.counted, held.protected)
        return found

    def committed(
        self, held: Held, tokens: Tokens, committed: int | None, row: list[int] | None
    ) -> int:
        """Return how many tokens count as computed."""
        if not held.holds and row is None:
            raise Refusal(InvalidRequest)
        most = len(tokens)
        if row is None or held.used:
            most = min(most, held.protected + held.used)
        if committed is None:
            unwritten = row is not None and not held.used and len(row) <= held.protected
            committed = held.protected if unwritten else most
        if not held.protected <= committed <= most:
            raise Refusal(InvalidRequest)
        return committed

    def _insert_own(
        self,
        held: Held,
        tokens: Tokens,
        committed: int,
        priority: int,
        row: list[int] | None,
        running: bool,
    ) -> Insertion:
        base = held.protected
        own = held.own if row is None or held.used else row[base:committed]
        counted = max(held.counted, base)
        done = self.insert(
            held.namespace, tokens[:committed], own, base, base, counted, priority, running
        )
        given = own[: max(done.end - base, 0)]
        if own is held.own:
            held.own = own[len(given) :]
            held.used = max(held.used - len(given), 0)
        self.loose -= self.numbers(given)
        self.free |= self.numbers(done.duplicates)
        return done

    def unfinished(
        self,
        held: Held,
        tokens: Tokens,
        committed: int | None,
        priority: int,
        row: list[int] | None = None,
        is_insert: bool = True,
    ) -> tuple[int, int, int]:
        """Cache a running request; return inserted length, what was there, slots freed.

        `row`: slots by position of a request whose scheduler allocates without it.
        """
        committed = self.committed(held, tokens, committed, row)
        base = held.protected
        if not is_insert or self.aligned(self.units(tokens[:committed])) <= base:
            return base, base, 0
        done = self._insert_own(held, tokens, committed, priority, row, running=True)
        self.lock(done.last)
        self.unlock(held.lock)
        held.locked, held.lock, held.protected = True, done.last, done.end
        held.counted = max(held.counted, done.end)
        return done.end, done.matched, len(done.duplicates)

    def finished(
        self,
        held: Held,
        tokens: Tokens,
        committed: int | None,
        priority: int,
        is_insert: bool,
        row: list[int] | None = None,
    ) -> tuple[int, int, int]:
        """Cache a finished request and free the rest; returns as :meth:`unfinished`."""
        committed = self.committed(held, tokens, committed, row)
        base = length = matched = held.protected
        freed = 0
        by_row = row is not None and not held.used
        if is_insert and self.aligned(self.units(tokens[:committed])) > base:
            done = self._insert_own(held, tokens, committed, priority, row, running=False)
            length, matched, freed = done.end, done.matched, len(done.duplicates)
        if by_row and row is not None:
            # The tail's pages go whole.
            tail = self.numbers(row[length:committed])
            self.release_loose(tail)
            freed += len(tail) * self.page
        return length, matched, freed + self.abort(held, touch=length == base)

    def abort(self, held: Held, touch: bool = True) -> int:
        """Free all that a request holds; return the slots freed."""
        if held.lock is not None and touch:
            # It was in use until now.
            self.touch(list(self.above(held.lock)))
        self.unlock(held.lock)
        freed = len(held.own)
        self.free |= self.numbers(held.own)
        held.own, held.used, held.protected, held.counted = [], 0, 0, 0
        held.locked, held.lock = False, None
        return freed

    def reset(self, holders: bool) -> None:
        """Forget all, unless somebody holds something."""
        if holders or self.loose:
            raise Refusal(Busy)
        self.free |= self.numbers([slot for page in self.pages.values() for slot in page.slots])
        self.pages.clear()
        self.children.clear()
        self.pins.clear()
        self.gone.clear()
        self.certain.clear()
