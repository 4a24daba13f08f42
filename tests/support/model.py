"""A plain sequential model of the cache: flat dictionaries and brute force, no tree, no actors.

It keeps one record a *page*, named by its namespace and by every token up to the page's end, and
answers each call from the words of the specification. A node of the real tree is here a run of
pages that ends at a page marked ``cut``. Costs are of no concern: the pools of tests are small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from radixtide.configs.errors import RadixtideError
from radixtide.configs.schema import EvictionConfig

Namespace = tuple[str | None, str | None]
Tokens = tuple[int, ...]
Name = tuple[Namespace, Tokens]


class Refusal(Exception):
    """The model's answer where the cache must raise `kind` and change nothing."""

    def __init__(self, kind: type[RadixtideError], numbers: dict[str, int] | None = None) -> None:
        super().__init__(kind.__name__)
        self.kind = kind
        self.numbers = numbers


@dataclass(slots=True, eq=False)
class Page:
    """One cached page. ``locks`` and ``pins`` count what covers it."""

    name: Name
    depth: int
    slots: tuple[int, ...]
    touch: int
    created: int
    priority: int
    high_water: int
    hits: int = 0
    cut: bool = False
    locks: int = 0
    pins: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """A match: its slots, the reasons that may be given, and the page that it ends with."""

    slots: list[int]
    reasons: frozenset[str]
    end: Page | None


@dataclass(frozen=True, slots=True)
class Insertion:
    """An insert: what was there, up to where it reaches, the duplicates, the last page."""

    matched: int
    end: int
    duplicates: list[int]
    last: Page | None


class Model:
    """The whole cache, one call after the other. Lengths in units, sizes in slots."""

    def __init__(
        self,
        page: int,
        pages: int,
        bigram: bool,
        eviction: EvictionConfig,
    ) -> None:
        self.page = page
        self.size = page * pages
        self.lookahead = int(bigram)
        self.eviction = eviction
        self.pages: dict[Name, Page] = {}
        self.children: Counter[Name] = Counter()
        self.free = set(range(pages))
        self.clock = 0
        self.born = 0
        # What was evicted and is not back; with the page it was cut from, where that is certain.
        self.gone: dict[Name, Page | None] = {}
        self.certain: set[Name] = set()

    # -- keys -----------------------------------------------------------------------

    def units(self, tokens: Tokens) -> int:
        """Return the length of a key in units."""
        return max(len(tokens) - self.lookahead, 0)

    def aligned(self, units: int) -> int:
        """Return the whole pages of `units`."""
        return units - units % self.page

    def name(self, namespace: Namespace, tokens: Tokens, end: int) -> Name:
        """Return the name of the page that ends at unit `end`."""
        return namespace, tokens[: end + self.lookahead]

    def path(self, namespace: Namespace, tokens: Tokens) -> list[Page]:
        """Return the cached pages that the key leads through."""
        found: list[Page] = []
        for end in range(self.page, self.aligned(self.units(tokens)) + 1, self.page):
            page = self.pages.get(self.name(namespace, tokens, end))
            if page is None:
                break
            found.append(page)
        return found

    def above(self, page: Page) -> Iterator[Page]:
        """Yield `page` and all above it, upward."""
        namespace, tokens = page.name
        for end in range(page.depth, 0, -self.page):
            yield self.pages[self.name(namespace, tokens, end)]

    def run(self, last: Page) -> list[Page]:
        """Return the pages of the node that ends with `last`, upward."""
        found: list[Page] = []
        for page in self.above(last):
            if page.cut and page is not last:
                break
            found.append(page)
        return found

    # -- match, insert --------------------------------------------------------------

    def touch(self, path: list[Page]) -> None:
        """Touch `path`, one access time for all of it."""
        self.clock += 1
        for page in path:
            page.touch = self.clock

    def hit(self, path: list[Page], counted: int, below: int = 0) -> None:
        """Count a hit on each node of `path` below depth `below` that ends beyond `counted`."""
        end = 0
        for page in reversed(path):
            if page.cut:
                end = page.depth
            page.hits += end > counted and page.depth > below

    def match(self, namespace: Namespace, tokens: Tokens, counted: int = 0) -> Match:
        """Match a key: touch what it covers, end a node where it ends."""
        path = self.path(namespace, tokens)
        if path:
            path[-1].cut = True
            self.touch(path)
            self.hit(path, counted)
        slots = [slot for page in path for slot in page.slots]
        return Match(slots, self._reasons(namespace, tokens, path), path[-1] if path else None)

    def _reasons(self, namespace: Namespace, tokens: Tokens, path: list[Page]) -> frozenset[str]:
        matched = len(path) * self.page
        units = self.units(tokens)
        if matched == units:
            return frozenset({"complete"})
        if matched == self.aligned(units):
            return frozenset({"unaligned_tail"})
        missing = self.name(namespace, tokens, matched + self.page)
        if missing not in self.gone:
            return frozenset({"never_stored"})
        if missing in self.certain and self.gone[missing] is (path[-1] if path else None):
            return frozenset({"evicted"})
        # A ghost may be forgotten when what was above it went too.
        return frozenset({"evicted", "never_stored"})

    def insert(
        self,
        namespace: Namespace,
        tokens: Tokens,
        slots: list[int],
        base: int = 0,
        prev: int = 0,
        counted: int = 0,
        priority: int = 0,
        running: bool = False,
    ) -> Insertion:
        """Give `slots`, those of the units from `base` on, to the tree.

        `running`: for a request that goes on; its lock covers the path, which is touched when it
        lets go.
        """
        path = self.path(namespace, tokens)
        end = self.aligned(self.units(tokens))
        matched = len(path) * self.page
        if end <= base:
            return Insertion(matched, end, [], path[-1] if path else None)
        if path:
            path[-1].cut = True
        if not running:
            self.touch(path)
        self.hit(path, counted, base)
        touch = path[-1].touch if path else self.clock
        self.born += 1
        for page in path:
            if page.depth > base or not running:
                page.priority = max(page.priority, priority) if priority else page.priority
            page.high_water = max(page.high_water, end)
        for depth in range(matched + self.page, end + 1, self.page):
            name = self.name(namespace, tokens, depth)
            own = tuple(slots[depth - self.page - base : depth - base])
            self.pages[name] = Page(name, depth, own, touch, self.born, priority, end)
            if depth > self.page:
                self.children[self.name(namespace, tokens, depth - self.page)] += 1
            self.gone.pop(name, None)
            self.certain.discard(name)
        last = self.pages[self.name(namespace, tokens, end)]
        last.cut = True
        duplicates = slots[max(prev - base, 0) : max(matched - base, 0)]
        return Insertion(matched, end, duplicates, last)

    def numbers(self, slots: list[int]) -> set[int]:
        """Return the numbers of the pool's pages that `slots` lie in."""
        return {slot // self.page for slot in slots}

    # -- eviction ---------------------------------------------------------------------

    def key(self, leaf: Page) -> tuple[int, ...]:
        """Return what the policy orders the node that ends with `leaf` by: least goes first."""
        policy, config = self.eviction.policy, self.eviction
        if policy == "lru":
            return (leaf.touch,)
        if policy == "mru":
            return (-leaf.touch,)
        if policy == "fifo":
            return (leaf.created,)
        if policy == "filo":
            return (-leaf.created,)
        if policy == "lfu":
            return (leaf.hits, leaf.touch)
        if policy == "priority":
            return (leaf.priority, leaf.touch)
        if policy == "slru":
            return (int(leaf.hits >= config.slru_protected_threshold), leaf.touch)
        assert policy == "tlru"
        start = leaf.depth - len(self.run(leaf)) * self.page
        budget = leaf.high_water + config.tlru_next_prompt_estimate - config.tlru_threshold
        return (int(start < budget), leaf.touch)

    def leaves(self) -> list[Page]:
        """Return the last pages of all evictable leaves."""
        return [
            page
            for name, page in self.pages.items()
            if page.cut and not page.locks and not self.children[name]
        ]

    def evict_units(self, target: int) -> tuple[int, list[Name]]:
        """Evict the smallest leaf again and again; return slots freed and the nodes' names."""
        freed = 0
        victims: list[Name] = []
        while freed < target and (leaves := self.leaves()):
            # Of one access time the deeper node goes first.
            leaf = min(leaves, key=lambda page: (self.key(page), -page.depth))
            victims.append(leaf.name)
            run = self.run(leaf)
            namespace, tokens = leaf.name
            start = run[-1].depth - self.page
            parent = self.pages[self.name(namespace, tokens, start)] if start else None
            for page in run:
                del self.pages[page.name]
                self.children.pop(page.name, None)
                self.free |= self.numbers(list(page.slots))
                freed += self.page
                self.gone[page.name] = parent
                self.certain.discard(page.name)
            self.certain.add(run[-1].name)
            if parent is not None:
                self.children[parent.name] -= 1
        return freed, victims

    # -- locks ------------------------------------------------------------------------

    def lock(self, page: Page | None) -> None:
        """Protect the path to `page`."""
        for at in self.above(page) if page is not None else ():
            at.locks += 1

    def unlock(self, page: Page | None) -> int:
        """Undo one lock; return the slots that became evictable."""
        moved = 0
        for at in self.above(page) if page is not None else ():
            at.locks -= 1
            moved += 0 if at.locks else self.page
        return moved
