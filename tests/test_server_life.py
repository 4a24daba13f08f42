"""The server's life: it answers while the model loads, and ends in order."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import msgspec
import openai
import pytest

from radixtide.configs.errors import ConfigError
from radixtide.serving.config import EngineConfig
from radixtide.serving.errors import EngineFailed
from radixtide.serving.http.app import make_app
from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.server import open_socket, until_over, url_of
from support.server import MODEL, ThreadedServer, raw, read_answer, request_bytes
from support.servers import wait_for

ENDLESS: dict[str, Any] = {
    "model": MODEL,
    "prompt": "on and on",
    "max_tokens": 4000,
    "extra_body": {"ignore_eos": True},
    "stream": True,
}


def test_health_tells_when_the_model_is_ready() -> None:
    with ThreadedServer(ready=False) as server:
        assert server.get("/health").status_code == 503
        assert server.get("/health").json() == {"status": "loading"}
        for path in ("/v1/models", "/stats"):
            refused = server.get(path)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "loading"
        assert server.post("/v1/completions", b"anything").status_code == 503
        assert server.get("/metrics").status_code == 200
        assert server.get("/").status_code == 200
        server.open()
        assert server.get("/health").status_code == 200
        assert server.get("/health").json() == {"status": "ready"}
        assert server.openai.models.list().data[0].id == MODEL


def test_at_the_end_a_running_answer_gets_its_time_and_nobody_new_is_taken() -> None:
    with ThreadedServer(ServerConfig(port=0, grace_s=60.0)) as server:
        with raw(server) as other:
            other.sendall(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
            assert read_answer(other)[0] == 200
            stream = server.openai.completions.create(**{**ENDLESS, "max_tokens": 150})
            first = next(iter(stream))
            server.stop()
            wait_for(lambda: server.service.phase == "stopping", "it does not begin to end")
            # While the answer goes on, a balancer can ask, and learns that this server is going.
            for path, status in (("/health", b" 503 "), ("/", b" 200 ")):
                with raw(server) as late:
                    late.sendall(f"GET {path} HTTP/1.1\r\nhost: here\r\n\r\n".encode())
                    assert status in late.recv(20)
            refused = server.post("/v1/completions", {"model": MODEL, "prompt": "late"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping")
            other.sendall(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
            assert read_answer(other)[0] == 503
            chunks = [first, *stream]
            assert other.recv(10) == b"", "a connection that rests is closed at the end"
        assert chunks[-1].choices[0].finish_reason == "length"
    with pytest.raises(openai.APIConnectionError):
        server.openai.models.list()


def test_an_answer_whose_time_is_over_is_told_so_and_its_slots_given_back() -> None:
    with ThreadedServer(ServerConfig(port=0, grace_s=0.2)) as server:
        streams = [iter(server.openai.completions.create(**ENDLESS)) for _ in range(2)]
        for stream in streams:
            list(islice(stream, 3))
        server.stop()
        for stream in streams:
            with pytest.raises(openai.APIError, match="the server is ending"):
                list(stream)
        wait_for(server.server.ended.is_set, "it does not end")
        assert server.engine is not None


def test_a_whole_answer_whose_time_is_over_is_refused() -> None:
    import threading

    with ThreadedServer(ServerConfig(port=0, grace_s=0.2)) as server:
        told: list[openai.APIStatusError] = []

        def ask() -> None:
            try:
                server.openai.completions.create(**{**ENDLESS, "stream": False})
            except openai.APIStatusError as error:
                told.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_for(lambda: server.stats()["running"] == 1, "it does not run")
        server.stop()
        asking.join()
    assert [error.status_code for error in told] == [503]
    assert told[0].code == "stopping"


def test_told_twice_it_waits_for_nobody() -> None:
    with ThreadedServer(ServerConfig(port=0, grace_s=600.0)) as server:
        stream = iter(server.openai.completions.create(**ENDLESS))
        next(stream)
        server.stop()
        server.stop()
        with pytest.raises(openai.APIError, match="the server is ending"):
            list(stream)


def test_a_port_that_is_taken_is_told() -> None:
    with open_socket(ServerConfig(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*choose another port"):
            open_socket(ServerConfig(port=port))


def test_a_host_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match=r"server\.host: no\.such\.host\.invalid:0 is no address"):
        open_socket(ServerConfig(host="no.such.host.invalid", port=0))


def test_the_url_of_a_socket() -> None:
    with open_socket(ServerConfig(port=0)) as opened:
        assert url_of(opened) == f"http://127.0.0.1:{opened.getsockname()[1]}"
    try:
        six = open_socket(ServerConfig(host="::1", port=0))
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    with six:
        assert url_of(six) == f"http://[::1]:{six.getsockname()[1]}"


def test_an_engine_that_has_failed_is_told_and_ends_the_server() -> None:
    with ThreadedServer() as server:
        engine = server.engine
        assert engine is not None
        stream = iter(server.openai.completions.create(**ENDLESS))
        next(stream)

        async def fail() -> None:
            assert engine._task is not None
            engine._task.cancel()
            await asyncio.wait((engine._task,))

        server.call(fail)
        assert server.get("/health").status_code == 503
        assert server.get("/health").json() == {"status": "failed"}
        refused = server.post("/v1/completions", {"model": MODEL, "prompt": "x"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "failed"
        with pytest.raises(EngineFailed, match="nothing is served any more"):
            server.call(lambda: until_over(server.server, engine))
        with pytest.raises(openai.APIError, match="send the request again"):
            list(stream)


def test_nothing_blocks_the_loop(no_blocking: None) -> None:
    with ThreadedServer() as server:
        long = {"model": MODEL, "prompt": "a long one " * 400, "max_tokens": 3}
        assert server.post("/v1/completions", long).status_code == 200
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        assert server.post("/v1/chat/completions", {**asked, "n": 2}).status_code == 200
        chunks = list(server.openai.completions.create(**{**ENDLESS, "max_tokens": 5}))
        assert chunks[-1].choices[0].finish_reason == "length"
        assert server.post("/admin/flush", {"tier": "device"}).status_code == 200
        for path in ("/", "/health", "/stats", "/metrics", "/v1/models"):
            assert server.get(path).status_code == 200
        server.assert_clean()


def test_an_application_can_be_made_before_there_is_a_loop() -> None:
    app = make_app()
    assert app.state.service.phase == "loading"


def test_a_stream_that_waits_long_shows_that_it_lives() -> None:
    engine = EngineConfig(max_running=1)
    with ThreadedServer(ServerConfig(port=0, heartbeat_s=0.02), engine) as server:
        running = server.openai.completions.create(**ENDLESS)
        next(iter(running))
        body = {"model": MODEL, "prompt": "in line", "max_tokens": 2, "stream": True}
        with raw(server) as waiting:
            waiting.sendall(request_bytes("/v1/completions", msgspec.json.encode(body)))
            data = b""
            while data.count(b": still at it\n\n") < 3:
                data += waiting.recv(4096)
            assert b"data:" not in data
            running.close()
            while b"[DONE]" not in data:
                data += waiting.recv(4096)
        server.assert_clean()


def test_only_clients_that_left_too_early_are_counted_as_gone() -> None:
    with ThreadedServer() as server:
        for _ in range(3):
            list(server.openai.completions.create(**{**ENDLESS, "max_tokens": 3}))
        server.post("/v1/completions", {"model": MODEL, "prompt": "whole", "max_tokens": 2})
        assert "radixtide_clients_gone_total 0.0" in server.get("/metrics").text
        stream = server.openai.completions.create(**ENDLESS)
        next(iter(stream))
        stream.close()
        server.assert_clean()
        assert "radixtide_clients_gone_total 1.0" in server.get("/metrics").text
