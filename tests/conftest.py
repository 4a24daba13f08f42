"""Fixtures of every test: caches in both modes of delivery, loops of both kinds, no lost errors.

* ``delivery``: "direct" and "queued"; tests of ``make_cache`` or ``cache`` run in both.
* ``make_cache``: ``async with make_cache(size=32, page_size=1) as cache``, audited at the end.
* ``cache``: an open small cache, audited at the end.
* ``make_stage``: ``make_stage(keepers=2)``, a bare actor system of small actors.
* ``loops``: a test that names it runs on plain asyncio and on uvloop.
* ``no_blocking``: a blocking call inside the loop fails the test.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import hypothesis
import pytest
from blockbuster import blockbuster_ctx

from radixtide import UnifiedRadixCache
from radixtide.configs.schema import CacheConfig
from support.actors import MakeStage, Stage
from support.caches import Delivery, MakeCache, checked, make_config
from support.servers import mooncake_server as mooncake_server
from support.servers import mooncake_shared as mooncake_shared
from support.servers import redis_server as redis_server
from support.servers import s3_server as s3_server

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


# How long an example takes is the machine's business: no test here is about time.
hypothesis.settings.register_profile("untimed", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("untimed")

# A shell starts what runs in the background with this signal ignored; tests send it all the same.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what was collected to its own: else each full collection goes through all of it."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """Run a test on asyncio's loop, and on uvloop's too when it asks for ``loops``."""
    factories: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if "loops" in getattr(item, "fixturenames", ()) and sys.platform != "win32":
        import uvloop

        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture
def loops() -> None:
    """Run the test once on each kind of loop (see pytest_asyncio_loop_factories)."""


@pytest.fixture(params=("direct", "queued"))
def delivery(request: pytest.FixtureRequest) -> Delivery:
    """Return the mode of delivery; a test with it runs in both."""
    mode: Delivery = request.param
    return mode


@pytest.fixture
def make_cache(delivery: Delivery) -> MakeCache:
    """Return a function that opens caches in the mode of ``delivery`` and audits them."""

    def make(
        config: CacheConfig | None = None, *, audit: bool = True, **overrides: Any
    ) -> AbstractAsyncContextManager[UnifiedRadixCache]:
        if config is None:
            config = make_config(**{"delivery": delivery, **overrides})
        return checked(config, audit=audit)

    return make


@pytest.fixture
async def cache(make_cache: MakeCache) -> AsyncGenerator[UnifiedRadixCache, None]:
    """Open a cache of 64 slots in pages of 4, audited at the end."""
    async with make_cache() as opened:
        yield opened


@pytest.fixture
def make_stage(delivery: Delivery) -> MakeStage:
    """Return a function that makes bare actor systems in the mode of ``delivery``."""

    def make(**options: Any) -> Stage:
        return Stage(delivery == "direct", **options)

    return make


@pytest.fixture
def no_blocking() -> Iterator[None]:
    """Let any blocking call inside a running loop raise BlockingError."""
    with blockbuster_ctx():
        yield


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self.seen.append(text)


@pytest.fixture(autouse=True)
def loop_errors() -> Iterator[list[str]]:
    """Fail the test on a crashed callback or an exception that nobody retrieved.

    asyncio only logs those. A test that plants one clears the list.
    """
    errors = _Errors()
    logger = logging.getLogger("asyncio")
    logger.addHandler(errors)
    try:
        yield errors.seen
    finally:
        logger.removeHandler(errors)
    assert errors.seen == []
