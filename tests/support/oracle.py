"""The brute-force oracle of hybrid caches: which prefix may be reused, by positions alone.

It keeps one record a *page* of every cached prefix, named by the namespace and by every token up to
the page's end: the page's slots in the Full pool, those in the SWA pool or none, and the state that
is valid at exactly the page's end or none. There is no tree, no list and no order here. Every
question is answered by looking at all positions it is about, in the words of the specification.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Namespace = tuple[str | None, str | None]
Tokens = tuple[int, ...]
Name = tuple[Namespace, Tokens]

FULL, SWA, MAMBA = "full", "swa", "mamba"


@dataclass(slots=True)
class Pair:
    """One page of tokens in both attention pools: numbers of pages; ``swa`` may be missing."""

    full: int
    swa: int | None = None


@dataclass(slots=True, eq=False)
class Page:
    """One cached page. ``locks`` counts, per component, what covers it."""

    name: Name
    depth: int
    full: int
    swa: int | None = None
    state: int | None = None
    locks: dict[str, int] = field(default_factory=lambda: {FULL: 0, SWA: 0, MAMBA: 0})


@dataclass(slots=True)
class Lock:
    """What one lock counted, per component; ``length`` is where it was taken."""

    length: int
    pages: dict[str, list[Page]]


@dataclass(frozen=True, slots=True)
class Insertion:
    """What an insert comes to, as half-open ranges of units and as pages given back."""

    matched: int
    adopted: tuple[tuple[int, int], ...]
    duplicate: tuple[tuple[int, int], ...]
    swa_adopted: tuple[tuple[int, int], ...]
    freed_full: list[int]
    freed_swa: list[int]


def ranges(positions: Iterable[int], page: int) -> tuple[tuple[int, int], ...]:
    """Return pages, given by their ascending starts, as half-open ranges."""
    found: list[tuple[int, int]] = []
    for start in positions:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + page)
        else:
            found.append((start, start + page))
    return tuple(found)


class Oracle:
    """Every cached page, and what may be done with it. Lengths in units."""

    def __init__(
        self, components: tuple[str, ...], page: int, window: int | None, bigram: bool = False
    ) -> None:
        self.components = components
        self.page = page
        self.window = window or 0
        self.reach = -(-self.window // page) * page
        self.lookahead = int(bigram)
        self.pages: dict[Name, Page] = {}

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

    def below(self, page: Page) -> list[Page]:
        """Return the cached pages whose tokens begin with all of `page`'s."""
        namespace, tokens = page.name
        return [
            other
            for (where, words), other in self.pages.items()
            if where == namespace and len(words) > len(tokens) and words[: len(tokens)] == tokens
        ]

    # -- match ------------------------------------------------------------------------

    def window_is_whole(self, path: list[Page], length: int) -> bool:
        """Return whether the last ``window`` units before `length`, or all of them, have SWA."""
        return all(
            page.swa is not None
            for page in path
            if page.depth <= length and page.depth > length - self.window
        )

    def has_state(self, path: list[Page], length: int) -> bool:
        """Return whether a state is valid at exactly `length`."""
        return any(page.state is not None for page in path if page.depth == length)

    def refusals(self, path: list[Page], length: int) -> set[str]:
        """Return the components that can not go on from `length`, which Full covers."""
        refusing = set()
        if SWA in self.components and not self.window_is_whole(path, length):
            refusing.add(SWA)
        if MAMBA in self.components and not self.has_state(path, length):
            refusing.add(MAMBA)
        return refusing

    def longest(self, path: list[Page], lengths: Iterable[int]) -> int:
        """Return the greatest of `lengths` from which every component can go on, or 0."""
        usable = [length for length in lengths if not self.refusals(path, length)]
        return max(usable, default=0)

    # -- insert -------------------------------------------------------------------------

    def insert(
        self,
        namespace: Namespace,
        tokens: Tokens,
        given: list[Pair],
        start: int,
        end: int,
        evicted: int = 0,
    ) -> Insertion:
        """Give the pages of ``[start, end)``.

        Their SWA is live where it comes last without a gap, and not below `evicted`.
        """
        matched = len(self.path(namespace, tokens)) * self.page
        gaps = [start + (at + 1) * self.page for at, pair in enumerate(given) if pair.swa is None]
        live = max([evicted, *gaps])
        adopted, duplicate, swa_adopted = [], [], []
        freed_full, freed_swa = [], []
        for depth, pair in zip(range(start + self.page, end + 1, self.page), given, strict=True):
            at = depth - self.page
            name = self.name(namespace, tokens, depth)
            known = self.pages.get(name)
            if known is None:
                known = self.pages[name] = Page(name, depth, pair.full)
                adopted.append(at)
            else:
                duplicate.append(at)
                freed_full.append(pair.full)
            if pair.swa is None:
                continue
            if known.swa is None and at >= live:
                known.swa = pair.swa
                swa_adopted.append(at)
            else:
                freed_swa.append(pair.swa)
        return Insertion(
            min(matched, end),
            ranges(adopted, self.page),
            ranges(duplicate, self.page),
            ranges(swa_adopted, self.page),
            freed_full,
            freed_swa,
        )

    # -- locks ----------------------------------------------------------------------------

    def lock(self, path: list[Page], length: int) -> Lock:
        """Protect what going on from `length` needs: all Full, one whole-paged window, one state.

        What has no data counts too: data that appears under a lock is protected at once.
        """
        covered = [page for page in path if page.depth <= length]
        pages = {
            FULL: covered,
            SWA: [page for page in covered if page.depth > length - self.reach],
            MAMBA: [page for page in covered if page.depth == length],
        }
        lock = Lock(length, {name: pages[name] for name in self.components})
        for name, counted in lock.pages.items():
            for page in counted:
                page.locks[name] += 1
        return lock

    def release(self, lock: Lock, *components: str) -> dict[str, int]:
        """Undo a lock (only of `components`, if any); return the slots that became evictable."""
        moved = dict.fromkeys(self.components, 0)
        for name in components or self.components:
            for page in lock.pages.pop(name, []):
                page.locks[name] -= 1
                assert page.locks[name] >= 0
                if not page.locks[name] and self.slots(page, name):
                    moved[name] += self.slots(page, name)
        return moved

    # -- sizes ----------------------------------------------------------------------------

    def slots(self, page: Page, component: str) -> int:
        """Return how many slots of a component's pool `page` occupies."""
        if component == FULL:
            return self.page
        if component == SWA:
            return self.page if page.swa is not None else 0
        return int(page.state is not None)

    def evictable(self, component: str) -> int:
        """Return the slots of a component that no lock of that component covers."""
        return sum(
            self.slots(page, component) for page in self.pages.values() if not page.locks[component]
        )

    def protected(self, component: str) -> int:
        """Return the slots of a component that locks cover."""
        return sum(
            self.slots(page, component) for page in self.pages.values() if page.locks[component]
        )
