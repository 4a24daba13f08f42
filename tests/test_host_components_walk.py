"""Random walks over the hooks of the host tier: after each step all is recounted and read again.

The plain model is the bytes: the bench writes a name of its own for every unit that is computed,
moves the names as the transfers say, and reads them where the nodes say. The walks split nodes
under pins, locks and transfers, end these in any order, well or not, and rebuild all components in
between, which must change nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ClassVar

import pytest

from radixtide.tree.node import IN_STORAGE, ON_DEVICE, ON_HOST, ComponentData, HostLink
from support.host_jobs import HostWorld

SETS = {
    "full": ("full",),
    "swa": ("full", "swa"),
    "mamba": ("full", "mamba"),
    "all": ("full", "swa", "mamba"),
}
STEPS = 220


class Walker:
    """One random walk over a small, tight world."""

    def __init__(self, seed: int, components: tuple[str, ...], page_size: int, policy: str) -> None:
        self.dice = random.Random(seed)
        page = page_size
        self.world = HostWorld(
            components,
            page_size=page,
            size=20 * page,
            swa_size=12 * page,
            window=2 * page + (1 if page > 1 else 0),
            states=6,
            host={"full": 22 * page, "swa": 18 * page, "mamba": 8},
            policy=policy,
        )
        self.page = page

    def tokens(self) -> list[int]:
        """Return a sequence of pages that shares its beginning with others."""
        pages = self.dice.randint(1, 9)
        branch = 0
        tokens: list[int] = []
        for at in range(pages):
            if self.dice.random() < 0.3:
                branch = self.dice.randint(0, 2)
            tokens += [branch * 1000 + at * self.page + i for i in range(self.page)]
        return tokens

    def step(self) -> str:
        """Do one thing; return its name."""
        choice = self.dice.choices(list(self.DO), [weight for weight, _ in self.DO.values()])[0]
        self.DO[choice][1](self)
        return choice

    def insert(self) -> None:
        tokens = self.tokens()
        swa = None if self.dice.random() < 0.6 else self.dice.randint(0, 3) * self.page
        prev = 0
        if self.dice.random() < 0.5:
            walk = self.world.walk(tokens)
            here = [node for node in walk.path if node.tiers & ON_DEVICE]
            prev = here[-1].end if here else 0
        if prev < len(tokens):
            self.world.insert(tokens, swa=swa, state=self.dice.random() < 0.8, prev=prev)

    def lock(self) -> None:
        nodes = list(self.world.tree)
        if nodes and len(self.world.receipts) < 4:
            self.world.lock(self.dice.choice(nodes))

    def unlock(self) -> None:
        if self.world.receipts:
            self.world.unlock(self.dice.randrange(len(self.world.receipts)))

    def use(self) -> None:
        world = self.world
        walk = world.walk(self.tokens())
        path = walk.path
        usable = world.usable(walk, True)
        either = world.usable(walk, False)
        world.touch(path[: max(usable, either)])
        for part in world.parts:
            if usable:
                part.finalize_match_result(path[:usable])
            if either > usable:
                first = sum(bool(node.tiers & ON_DEVICE) for node in path[:either])
                takes = part.finalize_host_match(path[:either], first)
                assert takes >= part.load_need(path[:either], first).slots

    def split(self) -> None:
        world = self.world
        long = [node for node in world.tree if node.length > self.page]
        busy = [node for node in long if world.is_busy(node)]
        long = busy if self.dice.random() < 0.7 and busy else long
        splits = []
        for node in self.dice.sample(long, min(2, len(long))):
            # Several in one message, the deepest first, each hook after all of them: as the
            # coordinator does it.
            for _ in range(self.dice.randint(1, 2)):
                pages = node.length // self.page
                if pages > 1:
                    splits.append(world.cut(node, self.dice.randrange(1, pages) * self.page))
                    node = splits[-1][0]
        world.split(*splits)

    def evict(self) -> None:
        part = self.dice.choice(self.world.parts)
        self.world.evict(part, self.dice.randint(1, 6) * part.allocator.page_size)

    def evict_host(self) -> None:
        part = self.dice.choice(self.world.parts)
        self.world.evict_host(part, self.dice.randint(1, 6) * part.allocator.page_size)

    def backup(self) -> None:
        nodes = [node for node in self.world.tree if node.tiers & ON_DEVICE]
        if nodes:
            self.world.begin_backup(self.dice.choice(nodes))

    def load(self) -> None:
        world = self.world
        away = [node for node in world.tree if not node.tiers & ON_DEVICE]
        for node in self.dice.sample(away, min(4, len(away))) or list(world.tree)[:1]:
            tokens = b"".join(at.piece for at in world.path(node))
            if world.begin_load([int(token) for token in memoryview(tokens).cast("q")]):
                break

    def end(self) -> None:
        world = self.world
        if not world.jobs:
            return
        ready = [
            number
            for number, job in world.jobs.items()
            if job.kind == "load"
            or all(
                node.parent is None
                or node.parent.parent is None
                or node.parent.tiers & ON_HOST
                or node.parent in job.nodes
                for node in job.nodes
            )
        ]
        if ready:
            number = self.dice.choice(ready)
            ok = self.dice.random() < 0.6
            if world.jobs[number].kind == "load":
                world.end_load(number, ok)
            else:
                world.end_backup(number, ok)

    def store(self) -> None:
        nodes = [node for node in self.world.tree if node.tiers & ON_HOST]
        if nodes:
            node = self.dice.choice(nodes)
            self.world.store([node], not node.tiers & IN_STORAGE or self.dice.random() < 0.7)

    def fetch(self) -> None:
        self.world.fetch(
            self.tokens(), swa=self.dice.randint(0, 3) * self.page, state=self.dice.random() < 0.5
        )

    def rebuild(self) -> None:
        before = self.picture()
        assert self.world.rebuild() == []
        assert self.picture() == before

    def picture(self) -> list[object]:
        """Return all that a repair must leave as it was; of equal places, any may come first."""
        full, others = self.world.full, self.world.parts[1:]
        # What a touch made smaller is found late; once all was looked at, nothing is.
        full.drive_host_eviction(10**6)
        # And leaves that were locked where they were are gone then.
        full.drive_eviction(10**6)
        orders: list[Iterable[ComponentData | HostLink]] = [full.leaves, *full.host_orders]
        return [
            [part.describe(node) for node in self.world.tree for part in self.world.parts],
            [(part.sizes(), part.host_sizes(), part.lru_lengths()) for part in self.world.parts],
            [[entry.order_key for entry in order] for order in orders],
            [{entry.node for entry in order} for order in orders],
            [part.drive_eviction(10**6) for part in others],
            [part.drive_host_eviction(10**6) for part in others],
        ]

    DO: ClassVar[dict[str, tuple[int, Callable[[Walker], None]]]] = {
        "insert": (9, insert),
        "lock": (3, lock),
        "unlock": (3, unlock),
        "use": (3, use),
        "split": (4, split),
        "evict": (7, evict),
        "evict_host": (2, evict_host),
        "backup": (8, backup),
        "load": (8, load),
        "end": (10, end),
        "store": (2, store),
        "fetch": (2, fetch),
        "rebuild": (1, rebuild),
    }

    def walk(self, steps: int) -> None:
        """Take steps, and recount and read everything after each."""
        for _ in range(steps):
            self.step()
            self.world.check()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("name", SETS)
def test_walks_are_sound_at_every_step(name: str, page_size: int) -> None:
    seen: Counter[str] = Counter()
    for seed, policy in enumerate(("lru", "lfu", "mru", "tlru")):
        walker = Walker(seed, SETS[name], page_size, policy)
        walker.walk(STEPS)
        seen += walker.world.seen
    wanted = {"insert", "revived", "backup", "backup failed", "load", "load failed", "fetch"}
    wanted |= {"split under way", "host-only locked", "demoted", "evicted on the host"}
    if len(SETS[name]) > 1:
        wanted.add("backup of what came later")
    assert not wanted - set(seen), seen


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("name", SETS)
def test_many_walks_are_sound_at_every_step(name: str, page_size: int) -> None:
    policies = ("lru", "lfu", "mru", "tlru", "slru", "filo", "fifo", "priority")
    for seed in range(100, 300):
        Walker(seed, SETS[name], page_size, policies[seed % 8]).walk(300)
