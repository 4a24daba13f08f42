"""Workloads: deterministic streams of cache operations.

An operation is a tuple ``(kind, rid, argument, tag)``:

* ``("start", rid, tokens, tag)``: admit a request: match, hold the indices, lock.
* ``("extend", rid, tokens, tag)``: its prefill is done: insert, hold the indices, move the lock.
* ``("finish", rid, tokens, tag)``: it is done: insert, unlock.
* ``("request", rid, tokens, tag)``: start and finish in a row.
* ``("match", None, tokens, tag)``: match and hold the indices.
* ``("match_lock", None, tokens, tag)``: match, then lock and unlock what matched.
* ``("evict", None, n, tag)``: evict at least ``n`` tokens; 0 means one page.

``tokens`` is an int64 array. ``tag`` is appended to the name of the operation in the report; None
runs the operation without reporting it.

A folder with a ``workloads.py`` that defines ``WORKLOADS`` (name to factory of the same kind of
object as :class:`OwnWorkload`) takes the place of the generators here, so that other caches can be
measured on exactly the same streams.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = npt.NDArray[np.int64]
Op: TypeAlias = tuple[str, int | None, Any, str | None]

VOCABULARY = 100_000


class Workload(Protocol):
    """A named stream, and the sizes of the device pools that it was made for."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def pool_tokens(self) -> int:
        """Slots of the pool."""
        ...

    @property
    def max_inserts(self) -> int:
        """At least as many as the inserts of the stream; each may keep one state."""
        ...

    def ops(self) -> Iterator[Op]:
        """Return the stream from its start; the same operations every time."""
        ...


class OwnWorkload(NamedTuple):
    """A workload made by this module."""

    name: str
    pool_tokens: int
    max_inserts: int
    make: Callable[[], Iterator[Op]]

    def ops(self) -> Iterator[Op]:
        """Return the stream from its start."""
        return self.make()


Factory: TypeAlias = Callable[..., Workload]


def _tokens(rng: np.random.Generator, count: int) -> Tokens:
    return rng.integers(0, VOCABULARY, size=count, dtype=np.int64)


def multi_turn(
    seed: int = 0, conversations: int = 150, turns: int = 5, running: int = 12, scale: int = 100
) -> OwnWorkload:
    """Chats that share a system prompt of ``10 * scale`` tokens, their turns interleaved.

    A question and an answer have between ``scale`` and ``4 * scale`` tokens each.
    """

    def make() -> Iterator[Op]:
        rng = np.random.default_rng((seed, 101))
        system = _tokens(rng, 10 * scale)
        waiting = [(system, turns) for _ in range(conversations)]
        prompts: dict[int, tuple[Tokens, int, bool]] = {}
        ids = itertools.count()

        def piece() -> Tokens:
            return _tokens(rng, int(rng.integers(scale, 4 * scale)))

        while waiting or prompts:
            if waiting and (not prompts or (len(prompts) < running and rng.random() < 0.4)):
                history, left = waiting.pop(int(rng.integers(len(waiting))))
                rid = next(ids)
                prompts[rid] = (np.concatenate((history, piece())), left, False)
                yield "start", rid, prompts[rid][0], ""
                continue
            rid = list(prompts)[int(rng.integers(len(prompts)))]
            prompt, left, prefilled = prompts[rid]
            if not prefilled:
                prompts[rid] = (prompt, left, True)
                yield "extend", rid, prompt, "prefill"
                continue
            del prompts[rid]
            answered = np.concatenate((prompt, piece()))
            yield "finish", rid, answered, "finish"
            if left > 1:
                waiting.append((answered, left - 1))

    pool = 10 * scale * (running + 1) + conversations * turns * (8 * scale + 256)
    return OwnWorkload("multi_turn", pool, 2 * conversations * turns, make)


def fan_out(
    seed: int = 0, prefix: int = 4096, tails: int = 2000, probes: int = 1000
) -> OwnWorkload:
    """One long prefix under many tails of 64 to 512 tokens; then hits, misses and splits."""

    def make() -> Iterator[Op]:
        rng = np.random.default_rng((seed, 102))
        head = _tokens(rng, prefix)
        ends = [_tokens(rng, int(n)) for n in rng.integers(64, 513, size=tails)]
        for rid, end in enumerate(ends):
            yield "request", rid, np.concatenate((head, end)), "grow"
        for i in rng.integers(tails, size=probes):
            yield "match", None, np.concatenate((head, ends[i])), ""
        for i in rng.integers(tails, size=probes):
            yield "match_lock", None, np.concatenate((head, ends[i])), ""
        for _ in range(probes):
            yield "match", None, np.concatenate((head, _tokens(rng, 256))), ""
        for _ in range(probes):
            yield "match", None, _tokens(rng, prefix + 256), ""
        for i in rng.integers(tails, size=probes):
            middle = len(ends[i]) // 2
            half = np.concatenate((head, ends[i][:middle], _tokens(rng, 64)))
            yield "match", None, half, "midnode"

    return OwnWorkload("fan_out", 2 * prefix + tails * (512 + 256), tails, make)


def deep_chain(seed: int = 0, step: int = 64, depth: int = 512, probes: int = 1000) -> OwnWorkload:
    """One chain of ``depth`` nodes of ``step`` tokens, grown node by node, matched at any depth."""

    def make() -> Iterator[Op]:
        rng = np.random.default_rng((seed, 103))
        chain = _tokens(rng, step * depth)
        for i in range(1, depth + 1):
            eighth = (i - 1) * 8 // depth
            part = {0: "first8th", 7: "last8th"}.get(eighth, "mid")
            yield "request", i, chain[: i * step], f"grow_{part}"
        for i in rng.integers(1, depth + 1, size=probes):
            yield "match", None, chain[: int(i) * step], ""
        for i in rng.integers(1, depth + 1, size=probes):
            yield "match_lock", None, chain[: int(i) * step], ""
        for _ in range(probes // 2):
            yield "match", None, chain, "full_depth"
        for _ in range(probes // 2):
            yield "match_lock", None, chain, "full_depth"
        for _ in range(probes // 2):
            yield "match", None, _tokens(rng, len(chain) // 2), ""
        for n in rng.integers(1, len(chain), size=probes):
            yield "match", None, np.concatenate((chain[: int(n)], _tokens(rng, 64))), "midnode"

    return OwnWorkload("deep_chain", 2 * step * depth + 4096, depth, make)


def long_doc(
    seed: int = 0, documents: int = 50, length: int = 100_000, reads: int = 20
) -> OwnWorkload:
    """Long documents, each inserted once and read again and again."""

    def make() -> Iterator[Op]:
        rng = np.random.default_rng((seed, 104))
        texts = [_tokens(rng, length) for _ in range(documents)]
        for rid, text in enumerate(texts):
            yield "request", rid, text, "new"
        for kind in ("match", "match_lock"):
            for _ in range(reads):
                for i in rng.permutation(documents):
                    yield kind, None, texts[i], ""
        for _ in range(documents):
            yield "match", None, _tokens(rng, length), ""

    return OwnWorkload("long_doc", documents * (length + 256) + 256, documents, make)


def evict_pressure(
    seed: int = 0, nodes: int = 1000, leaf: int = 64, steady: int = 300, evictions: int = 100
) -> OwnWorkload:
    """Press a working set on a pool of about `nodes` leaves, a quarter of its size.

    Fill the pool; touch the working set at random, so that misses evict; then evict one page, and
    1,000 tokens, again and again with unreported refills between.
    """
    groups = 32

    def make() -> Iterator[Op]:
        rng = np.random.default_rng((seed, 105, nodes))
        heads = [_tokens(rng, leaf) for _ in range(groups)]
        ids = itertools.count()

        def member(i: int) -> Tokens:
            own = np.random.default_rng((seed, 106, i))
            return np.concatenate((heads[i % groups], _tokens(own, leaf)))

        def fresh() -> Tokens:
            return np.concatenate((heads[int(rng.integers(groups))], _tokens(rng, leaf)))

        for i in range(nodes):
            yield "request", next(ids), member(i), "fill"
        for i in rng.integers(nodes, size=min(nodes, 1000)):
            yield "match", None, member(int(i)), ""
        for i in rng.integers(nodes, size=min(nodes, 1000)):
            yield "match_lock", None, member(int(i)), ""
        for i in rng.integers(4 * nodes, size=steady):
            yield "request", next(ids), member(int(i)), "steady"
        for _ in range(evictions):
            yield "evict", None, 0, "1page"
            yield "request", next(ids), fresh(), None
        for _ in range(evictions):
            yield "evict", None, 1000, "1k"
            for _ in range(-(-1000 // leaf)):
                yield "request", next(ids), fresh(), None

    inserts = nodes + steady + evictions * (1 - (-1000 // leaf))
    return OwnWorkload(f"evict_pressure_n{nodes}", nodes * leaf + groups * leaf, inserts, make)


OWN: Mapping[str, Factory] = {
    "multi_turn": multi_turn,
    "fan_out": fan_out,
    "deep_chain": deep_chain,
    "long_doc": long_doc,
    "evict_pressure_n1000": lambda seed=0: evict_pressure(seed, 1000),
    "evict_pressure_n10000": lambda seed=0: evict_pressure(seed, 10_000),
    "evict_pressure_n100000": lambda seed=0: evict_pressure(seed, 100_000, 64, 150, 40),
}
"""The generators of this module by name."""

SMALL: Mapping[str, Factory] = {
    "multi_turn": lambda seed=0: multi_turn(seed, 6, 3, 3, 12),
    "fan_out": lambda seed=0: fan_out(seed, 200, 12, 8),
    "deep_chain": lambda seed=0: deep_chain(seed, 64, 12, 8),
    "long_doc": lambda seed=0: long_doc(seed, 3, 2000, 2),
    "evict_pressure_n40": lambda seed=0: evict_pressure(seed, 40, 64, 60, 4),
}
"""The same with a few dozen operations each: to see that everything runs, not to measure."""


def load(folder: Path) -> Mapping[str, Factory]:
    """Return the workloads of `folder`'s ``workloads.py``, or :data:`OWN` where there is none."""
    path = folder / "workloads.py"
    if not path.is_file():
        return OWN
    name = "radixtide_external_workloads"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} can not be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    workloads: Mapping[str, Factory] = module.WORKLOADS
    return workloads


__all__ = ("OWN", "SMALL", "Factory", "Op", "OwnWorkload", "Tokens", "Workload", "load")
