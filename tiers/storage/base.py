"""What every store of pages offers, and the words they share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt

from radixtide.configs.errors import ConfigError, InvalidInput, RadixtideError, how_to_install

Digests = npt.NDArray[np.uint64]
"""One 64-bit digest a page, as taken when the page left the device."""

_CHAIN: Final = re.compile(r"[0-9A-Za-z_-]{1,160}")
_POOL: Final = re.compile(r"[0-9A-Za-z_-]{1,48}")


class StorageFailed(RadixtideError):
    """A store did not do what it was asked to: unreachable, broken, out of space.

    Never seen beside a :class:`~radixtide.tiers.storage.breaker.Guarded`, which counts it.
    """


class StorageClosed(StorageFailed):
    """A store was used before `open` or after `close`."""


class PageKey(msgspec.Struct, frozen=True):
    """The name of one stored page of one pool.

    `chain`: hash of the page (hex), a dash, and the identity of its bytes. `parent`: the chain of
    the page before it, None for a first page; it only tells which pages must stay while this one
    does. `pool`: which pool the bytes belong to. Letters, digits, dash and underscore only, so
    that a name is a file's name, an object's and a key in any store.
    """

    chain: str
    parent: str | None
    pool: str

    def __post_init__(self) -> None:
        if not (
            _CHAIN.fullmatch(self.chain)
            and _POOL.fullmatch(self.pool)
            and (self.parent is None or _CHAIN.fullmatch(self.parent))
            and self.parent != self.chain
        ):
            raise InvalidInput(f"{self!r} is no name of a page")

    @property
    def name(self) -> str:
        """The whole name: chain and pool."""
        return f"{self.chain}.{self.pool}"


Circuit = Literal["none", "closed", "open", "half_open"]


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a store has done since it was opened, and what it holds.

    `hits`, `misses`: pages read, and not found. `bad`: pages that were found but were not what was
    written under their name (torn, altered, of another length or name); each was deleted and is
    not among the misses. `puts`: pages stored. `refused`: pages that found no room. `evicted`:
    pages that went for others. `get_bytes`, `put_bytes`: payload. `values`, `bytes`: what is held,
    None where only the server knows. `max_bytes`: size limit, 0 for none of ours.

    Of a guarded store: `failures` (calls that failed), `timeouts` (calls that took too long),
    `rejected` (calls answered at once, as the circuit was open) and the `circuit`.
    """

    backend: str
    hits: int = 0
    misses: int = 0
    bad: int = 0
    puts: int = 0
    refused: int = 0
    deleted: int = 0
    evicted: int = 0
    get_bytes: int = 0
    put_bytes: int = 0
    values: int | None = None
    bytes: int | None = None
    max_bytes: int = 0
    failures: int = 0
    timeouts: int = 0
    rejected: int = 0
    circuit: Circuit = "none"


class Counters(msgspec.Struct):
    """The counts of :class:`StoreStats` as they grow; one store writes them."""

    hits: int = 0
    misses: int = 0
    bad: int = 0
    puts: int = 0
    refused: int = 0
    deleted: int = 0
    evicted: int = 0
    get_bytes: int = 0
    put_bytes: int = 0


class StorageBackend(ABC):
    """A store of pages under names; batched, asynchronous, and fallible in every call.

    Calls may run side by side and be cancelled at any await: when a call has returned, or its
    cancellation has come out of it, nothing reads the sources or writes to the targets any more. A
    cancelled `put_from` may have happened or not. The event loop is never blocked: work is done in
    worker threads.

    Raw stores raise :class:`StorageFailed`; a page that is not there, or not what it should be, is
    no error. Between `open` and `close`, or ``async with``.
    """

    kind: str

    def check(self) -> None:  # noqa: B027  # most stores can always be tried
        """Raise ConfigError where opening can not succeed, however often it is tried. No I/O."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, or open the files. May be called again after it failed."""

    @abstractmethod
    async def exists(self, keys: Sequence[PageKey]) -> list[bool]:
        """Return whether each page is stored. A page that is there may still turn out bad."""

    @abstractmethod
    async def get_into(
        self,
        keys: Sequence[PageKey],
        targets: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        """Read each page into its target; return which are there, verified and whole.

        `targets`: writable contiguous memory, each of exactly the page's bytes. `digests`: array
        that takes the digest stored with each page that was read; other places keep their values.
        A target whose answer is False has unspecified content.
        """

    @abstractmethod
    async def put_from(
        self,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        """Store each page under its name; return which are stored now.

        One call is one node's data, parents before children: where the store has transactions all
        of it becomes visible together, or nothing. A page that is stored already is replaced, or
        kept when it is the same. `digests`: kept with the pages; None: computed from the bytes.
        """

    @abstractmethod
    async def delete(self, keys: Sequence[PageKey]) -> None:
        """Remove pages; those that are not there are passed over."""

    @abstractmethod
    async def clear(self) -> None:
        """Remove every page that this kind of store has put at this place, by any process."""

    @abstractmethod
    def stats(self) -> StoreStats:
        """Return what was done and is held. No I/O."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what runs, release everything. More calls raise StorageClosed; twice is fine."""

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def flat(memory: Sequence[memoryview], count: int, writable: bool) -> list[memoryview]:
    """Return `count` pieces of the caller's memory as plain bytes; InvalidInput if they are not."""
    if len(memory) != count:
        raise InvalidInput(f"{count} keys with {len(memory)} pieces of memory")
    views = []
    for place, given in enumerate(memory):
        view = memoryview(given)
        if not view.c_contiguous or (writable and view.readonly):
            raise InvalidInput(f"memory {place} is not contiguous, or can not be written")
        views.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
    return views


def digest_list(digests: Digests | None, count: int) -> list[int | None]:
    """Return the digests as numbers, one for each of `count` pages; None where they are missing."""
    if digests is None:
        return [None] * count
    if len(digests) != count:
        raise InvalidInput(f"{count} keys with {len(digests)} digests")
    return [int(digest) for digest in digests]


def copy_bytes(target: memoryview, source: Any) -> None:
    """Copy `source` into `target` of the same length, letting other threads run meanwhile."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


@contextmanager
def extra(package: str, hint: str = "") -> Iterator[None]:
    """Turn a missing package into a ConfigError that says how to install it."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"storage.url: this store needs the package {package} ({error}); "
            f"{how_to_install('storage')}{hint}"
        ) from error
