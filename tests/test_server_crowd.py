"""Many clients at once, of which some vanish: nothing is held afterwards, the cache is sound."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from radixtide.serving.config import EngineConfig
from radixtide.serving.http.config import ServerConfig
from support.server import MODEL, ThreadedServer, raw, request_bytes
from support.servers import wait_for

CLIENTS = 64
SYSTEM = "Everybody here shares this long opening, which is computed only once. " * 3


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    engine = EngineConfig(max_running=24)
    with ThreadedServer(engine=engine, tokens=4096) as opened:
        yield opened


def asked(number: int, tokens: int) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"client {number % 16}"},
    ]
    return {
        "model": MODEL,
        "messages": messages,
        "max_tokens": tokens,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }


def test_sixty_four_clients_of_which_a_third_vanish(server: ThreadedServer) -> None:
    async def one(client: AsyncOpenAI, number: int) -> int:
        """Read an answer, or a part of it, on a connection of its own; return the chunks read."""
        leaves = number % 3 == 2
        stream = await client.chat.completions.create(
            **asked(number, 400 if leaves else 8), stream=True
        )
        chunks = 0
        async for _ in stream:
            chunks += 1
            if leaves and chunks == 3:
                break
        await stream.close()
        return chunks

    async def all_of_them() -> list[int]:
        async with server.async_openai as client:
            return await asyncio.gather(*(one(client, number) for number in range(CLIENTS)))

    chunks = asyncio.run(all_of_them())
    assert all(count > 3 for number, count in enumerate(chunks) if number % 3 != 2)
    server.assert_clean()
    stats = server.stats()
    assert stats["finished"]["error"] == 0
    assert stats["finished"]["abort"] > 0, "some vanished before their answer's end"
    assert stats["cached_device"] > stats["computed_tokens"], "most of the prompts is shared"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["closed", "reset", "half closed"])
def test_a_client_that_goes_away_ends_its_request(
    server: ThreadedServer, stream: bool, how: str
) -> None:
    before = server.settled()["finished"]["abort"]
    body = {**asked(1, 2000), "stream": stream, "ignore_eos": True}
    del body["extra_body"]
    with raw(server) as opened:
        opened.sendall(request_bytes("/v1/chat/completions", msgspec.json.encode(body)))
        if stream:
            assert opened.recv(100).startswith(b"HTTP/1.1 200")
        else:
            wait_for(lambda: server.stats()["running"] == 1, "the request does not run")
        if how == "reset":
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        if how == "half closed":
            opened.shutdown(socket.SHUT_WR)
            server.settled()
    assert server.settled()["finished"]["abort"] == before + 1
    server.assert_clean()


def test_a_client_of_several_choices_that_goes_away_ends_them_all(server: ThreadedServer) -> None:
    before = server.settled()["finished"]["abort"]
    stream = server.openai.chat.completions.create(**asked(2, 1000), n=4, stream=True)
    assert len(list(islice(stream, 8))) == 8
    stream.close()
    assert server.settled()["finished"]["abort"] == before + 4
    server.assert_clean()


def test_a_slow_reader_holds_up_nobody_and_is_cut_off_in_the_end() -> None:
    config = ServerConfig(port=0, write_timeout_s=0.3, choices_max=64)
    with ThreadedServer(config, send_buffer=4096) as server, raw(server) as slow:
        # Far more than the kernel buffers, of which the client reads nothing.
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = {
            "model": MODEL,
            "prompt": ["x" * 4000] * 64,
            "max_tokens": 1000,
            "ignore_eos": True,
            "echo": True,
            "stream": True,
        }
        slow.sendall(request_bytes("/v1/completions", msgspec.json.encode(body)))
        answer = server.openai.completions.create(model=MODEL, prompt="quick", max_tokens=2)
        assert answer.choices[0].finish_reason in ("length", "stop")
        wait_for(
            lambda: "radixtide_clients_gone_total 1.0" in server.get("/metrics").text,
            "it is never cut off",
        )
        server.assert_clean()


def test_who_comes_when_all_places_are_taken_is_told_to_come_again() -> None:
    engine = EngineConfig(max_running=1, queue_max=1)
    with ThreadedServer(engine=engine) as server:
        first = server.openai.chat.completions.create(**asked(1, 1000), stream=True)
        second = server.openai.chat.completions.create(**asked(2, 1000), stream=True)
        next(first)
        wait_for(lambda: server.stats()["waiting"] == 1, "the second does not wait")
        body = {key: value for key, value in asked(3, 1).items() if key != "extra_body"}
        refused = server.post("/v1/chat/completions", {**body, "stream": True})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "overloaded"
        # Of several choices all or none are begun.
        assert server.post("/v1/chat/completions", {**body, "n": 2}).status_code == 503
        first.close()
        second.close()
        server.assert_clean()
