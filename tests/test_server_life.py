"""The server's life: it answers while the model loads, and ends in order."""

from __future__ import annotations

from itertools import islice
from typing import Any

import openai
import pytest

from radixtide.configs.errors import ConfigError
from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.server import open_socket, url_of
from support.server import MODEL, ThreadedServer, raw, read_answer
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
            assert other.recv(10) == b"", "a connection that rests is closed"
        chunks = [first, *stream]
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
        with pytest.raises((openai.APIError, openai.APIConnectionError, Exception)):
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
