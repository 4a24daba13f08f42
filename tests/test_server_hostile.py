"""Clients that mean no good, or do not know better: each is told what to do, and the server lives.

Every refusal is an error object as the OpenAI API has it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.protocol import UNSUPPORTED, Unsupported
from support.server import MODEL, ThreadedServer, raw, read_answer, request_bytes
from support.servers import wait_for

HEAD_S = 0.4


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    config = ServerConfig(
        port=0,
        body_bytes_max=100_000,
        body_timeout_s=0.4,
        head_bytes_max=8192,
        head_timeout_s=HEAD_S,
        answer_tokens_default=4,
    )
    with ThreadedServer(config, tokens=2048) as opened:
        yield opened
        opened.assert_clean()


@pytest.fixture(autouse=True)
def lives(server: ThreadedServer) -> Iterator[None]:
    """After each test the server answers, and nothing is held."""
    yield
    server.assert_nothing_held()


MESSAGES = [{"role": "user", "content": "hello"}]
EMPTY = [{"role": "user", "content": ""}]
DEEP = "[" * 100_000 + "]" * 100_000


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": MESSAGES, "max_tokens": 2, **fields}


def plain(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hello", "max_tokens": 2, **fields}


def test_a_field_that_asks_for_what_happens_anyway_is_taken(server: ThreadedServer) -> None:
    assert {*UNSUPPORTED, "response_format"} == set(Unsupported.__struct_fields__)
    for neutral in (UNSUPPORTED, dict.fromkeys(UNSUPPORTED)):
        fields = {**neutral, "response_format": {"type": "text"}}
        for path, body in (
            ("/v1/chat/completions", chat(**fields)),
            ("/v1/completions", plain(**fields)),
        ):
            assert server.post(path, body).status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (chat(max_tokens="many"), "max_tokens", "expected int | null, got str"),
        (chat(max_tokens=1.5), "max_tokens", "expected int"),
        (chat(max_tokens=True), "max_tokens", "expected int | null, got bool"),
        (chat(max_tokens=0), "max_tokens", "0, but needs at least 1"),
        (chat(max_tokens=-4), "max_tokens", "-4, but needs at least 1"),
        (chat(max_tokens=10**30), "max_tokens", "but this server makes at most 4096 tokens"),
        (chat(max_tokens=2045), "max_tokens", "ask for at most "),
        (chat(max_completion_tokens=10**9), "max_completion_tokens", "at most 4096"),
        (chat(temperature="hot"), "temperature", "expected float | null, got str"),
        (chat(temperature=-0.5), "temperature", "must be at least 0"),
        (chat(temperature=1e999), "temperature", ""),
        (chat(top_p=0), "top_p", "must be above 0"),
        (chat(top_k=-2), "top_k", "at least 0"),
        (chat(n=0), "n", "0, but needs at least 1"),
        (chat(n=10**6), "n", "at most 16 answers"),
        (chat(stop=["x"] * 9), "stop", "at most 8"),
        (chat(stop=[""]), "stop", "1 to 256"),
        (chat(stop="x" * 1000), "stop", "1 to 256"),
        (chat(stop_token_ids=[1] * 65), "stop_token_ids", "65 tokens; at most 64"),
        (chat(stop_token_ids=[-1]), "stop_token_ids", "at least 0"),
        (chat(top_logprobs=3), "top_logprobs", "logprobs: true"),
        (chat(logprobs=True, top_logprobs=1000), "top_logprobs", "0 to 20"),
        (chat(stream_options={"include_usage": True}), "stream_options", "stream: true only"),
        (chat(stream_options=7, stream=True), "stream_options", "expected object | null"),
        (chat(tools=[{"type": "function"}]), "tools", "not supported"),
        (chat(response_format={"type": "json_object"}), "response_format", "use 'text'"),
        *(
            (chat(**{name: value}), name, "is not supported; leave it out")
            for name, value in {
                "repetition_penalty": 1.3,
                "min_p": 0.1,
                "min_tokens": 5,
                "guided_json": {"type": "object"},
                "bad_words": ["no"],
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
                "chat_template_kwargs": {"enable_thinking": False},
                "continue_final_message": True,
            }.items()
        ),
        (plain(min_tokens=3), "min_tokens", "not supported"),
        (plain(response_format={"type": "json_object"}), "response_format", "use 'text'"),
        (plain(tools=[1]), "tools", "not supported"),
        (chat(frequency_penalty=0.1), "frequency_penalty", "not supported"),
        (chat(logit_bias={"5": 1}), "logit_bias", "not supported"),
        (chat(messages=[]), "messages", "is empty"),
        (chat(messages="hello"), "messages", "expected array, got str"),
        (chat(messages=[7]), "messages[0]", "expected object, got int"),
        (chat(messages=[{"content": "x"}]), "messages[0].role", "is missing"),
        (chat(messages=[{"role": "cook", "content": "x"}]), "messages[0].role", "use one of"),
        (chat(messages=[{"role": "user"}]), "messages[0].content", "is missing"),
        (chat(messages=[{"role": "user", "content": 3}]), "messages[0].content", "expected"),
        (
            chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
            "messages[0].content[0]",
            "parts of type 'text'",
        ),
        (
            chat(messages=[{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0].content[0].text",
            "is missing; write text",
        ),
        (chat(messages=[*MESSAGES, {"role": "user", "content": "x" * 3000}]), "messages", "tokens"),
        (chat(messages=EMPTY * 2048), "messages", "2048 messages, but this server takes at most"),
        (
            chat(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * 2048}]),
            "messages[0].content",
            "2048 parts; at most 2047",
        ),
        (chat(cache_salt=""), "cache_salt", "is empty; leave it out"),
        (chat(cache_salt="s" * 257), "cache_salt", "257 characters; at most 256"),
        ({"messages": MESSAGES}, "model", "is missing"),
        (plain(prompt=None), "prompt", "expected"),
        (plain(prompt=[]), "prompt", "is empty"),
        (plain(prompt=""), "prompt", "is empty"),
        (plain(prompt=[[]]), "prompt", "is empty"),
        (plain(prompt=["a", 1]), "prompt[1]", "another kind"),
        (plain(prompt=[1, 2, 260]), "prompt", "token 260 is none of the model's"),
        (plain(prompt=[-1]), "prompt", "token -1"),
        (plain(prompt=[10**25]), "prompt", "none of the model's"),
        (plain(prompt=[1.5]), "prompt[0]", "expected"),
        (plain(prompt=["x"] * 17), "n", "1 for each of 17 prompts"),
        (plain(prompt="x" * 2048), "prompt", "takes at most 2047"),
        (plain(prompt=[-1] * 2048), "prompt", "takes at most 2047"),
        (plain(cache_salt="s" * 257), "cache_salt", "257 characters; at most 256"),
        (plain(logprobs=21), "logprobs", "0 to 20"),
        (plain(logprobs=1, echo=True), "logprobs", "can not go with echo"),
        (plain(suffix="end"), "suffix", "not supported"),
        (plain(best_of=4), "best_of", "not supported"),
        (plain(priority=2**70), "priority", ""),
        (plain(seed="x"), "seed", "expected int"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    server: ThreadedServer, body: dict[str, Any], param: str, message: str
) -> None:
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    # Numbers that JSON can say and no float can hold.
    answer = server.post(path, json.dumps(body).replace("Infinity", "1e999").encode())
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert message in error["message"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b"hello", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "expected object, got array"),
        (b"7", "expected object, got int"),
        (b'{"model": "\xff\xfe"}', ""),
        (b'{"model": "\\ud800"}', ""),
        (b'{"model": "a", "prompt": "\xc3"}', ""),
        (b'{"a": ' + DEEP[:49_000].encode() + b"}", ""),
        (b'{"model": "x", "a": ' + b"[" * 40_000 + b"]" * 40_000 + b"}", "nested too deeply"),
        (b'{"model": "x", "messages": ' + b"[" * 40_000 + b"]" * 40_000 + b"}", ""),
        (b'{"model": "x", "tools": ' + b"[" * 40_000 + b"]" * 40_000 + b"}", "nested too deeply"),
        (b'\x00{"model": "x"}', "not valid JSON"),
        (Random(5).randbytes(64), ""),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else "",
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_body_that_is_no_request_is_refused(
    server: ThreadedServer, path: str, data: bytes, message: str
) -> None:
    answer = server.post(path, data)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]


def test_a_model_that_is_not_there_is_named_beside_the_one_that_is(server: ThreadedServer) -> None:
    answer = server.post("/v1/completions", plain(model="x" * 5000))
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "model_not_found"
    assert MODEL in error["message"]
    assert len(error["message"]) < 300


def test_unknown_fields_are_ignored(server: ThreadedServer) -> None:
    body = chat(user="u", metadata={"a": "b"}, service_tier="auto", store=False, tools=[])
    assert server.post("/v1/chat/completions", body).status_code == 200


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(
    server: ThreadedServer,
) -> None:
    for told in ("100001", "9" * 18, "9" * 19):
        with raw(server) as opened:
            opened.sendall(request_bytes("/v1/completions", b"", content_length=told))
            status, body = read_answer(opened)
        assert status == 413
        assert "100000 bytes" in body["error"]["message"]


def test_a_body_that_grows_too_large_is_refused(server: ThreadedServer) -> None:
    with raw(server) as opened:
        head = request_bytes("/v1/completions", b"", transfer_encoding="chunked")
        opened.sendall(head.replace(b"content-length: 0\r\n", b""))
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        opened.sendall(chunk * 2)
        status, body = read_answer(opened)
    assert status == 413
    assert body["error"]["code"] == "body_too_large"


def test_the_official_client_sees_the_refusal_of_a_large_body(server: ThreadedServer) -> None:
    import openai

    with pytest.raises(openai.APIStatusError) as refused:
        server.openai.completions.create(model=MODEL, prompt="x" * 300_000)
    assert refused.value.status_code == 413


def test_a_body_that_does_not_come_is_waited_for_only_so_long(server: ThreadedServer) -> None:
    with raw(server) as opened:
        opened.sendall(request_bytes("/v1/completions", b"", content_length="50") + b"{")
        status, body = read_answer(opened)
    assert status == 408
    assert "0.4 s" in body["error"]["message"]


def test_a_head_that_does_not_come_is_waited_for_only_so_long(server: ThreadedServer) -> None:
    with raw(server) as opened:
        opened.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: here\r\n")
        status, _ = read_answer(opened)
        assert opened.recv(10) == b"", "and the connection is closed"
    assert status == 408


def test_a_head_that_trickles_in_is_cut_off_too(server: ThreadedServer) -> None:
    done = threading.Event()
    with raw(server) as opened:

        def trickle() -> None:
            opened.sendall(b"GET /health HTTP/1.1\r\n")
            while not done.wait(0.05):
                try:
                    opened.sendall(b"a: b\r\n")
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        status, _ = read_answer(opened)
        done.set()
        thread.join()
    assert status == 408


def test_a_head_without_end_is_refused(server: ThreadedServer) -> None:
    with raw(server) as opened:
        opened.sendall(b"GET /health HTTP/1.1\r\nhost: here\r\n" + b"a: " + b"b" * 20_000)
        status, body = read_answer(opened)
    assert status == 400
    assert "8192 bytes" in body["error"]["message"]


def test_a_flood_of_headers_is_refused(server: ThreadedServer) -> None:
    flood = b"".join(b"x-%d: y\r\n" % number for number in range(2000))
    with raw(server) as opened:
        opened.sendall(b"GET /health HTTP/1.1\r\nhost: here\r\n" + flood + b"\r\n")
        status, body = read_answer(opened)
    # Whether it is seen whole, or in parts, is the network's doing.
    assert status in (400, 431)
    assert "8192 bytes" in body["error"]["message"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"GET / HTTP/11\r\nhost: a\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\n",
        (
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n"
            b"content-length: 6\r\n\r\n"
        ),
        b"GET /\x00 HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
    ids=["TLS", "words", "version", "negative length", "two lengths", "zero byte"],
)
def test_what_is_no_http_is_refused(server: ThreadedServer, data: bytes) -> None:
    with raw(server) as opened:
        opened.sendall(data)
        status, body = read_answer(opened)
    assert status == 400
    assert body["error"]["code"] == "invalid_http"


def test_one_connection_too_many_is_refused_and_one_less_makes_room() -> None:
    with ThreadedServer(ServerConfig(port=0, connections_max=5)) as small, ExitStack() as stack:
        # These hold their places, as they never ask for anything.
        first = stack.enter_context(raw(small))
        for _ in range(4):
            stack.enter_context(raw(small))
        for _ in range(3):
            with raw(small) as late:
                status, body = read_answer(late)
                assert status == 503
                assert body["error"]["code"] == "overloaded"
                assert late.recv(10) == b"", "and the connection is closed"
        first.close()
        wait_for(lambda: small.get("/health").status_code == 200, "there is no room")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/v1/models/%00", 404),
        ("POST", "/admin/nothing", 404),
    ],
)
def test_what_is_not_there_is_told_as_json(
    server: ThreadedServer, method: str, path: str, status: int
) -> None:
    with raw(server) as opened:
        opened.sendall(f"{method} {path} HTTP/1.1\r\nhost: here\r\n\r\n".encode())
        found, body = read_answer(opened)
    assert found == status
    assert body["error"]["message"]


def test_random_bytes_in_a_valid_frame_never_make_a_server_error(server: ThreadedServer) -> None:
    import random

    draw = random.Random(7)
    body = json.dumps(chat()).encode()
    for _ in range(80):
        broken = bytearray(body)
        for _ in range(draw.randint(1, 6)):
            place = draw.randrange(len(broken))
            match draw.randrange(3):
                case 0:
                    broken[place] = draw.randrange(256)
                case 1:
                    del broken[place]
                case _:
                    broken[place:place] = draw.choice([b'"', b"{", b"null", b"9e9", b"\\u0000"])
        answer = server.post("/v1/chat/completions", bytes(broken))
        assert answer.status_code in (200, 400, 404), (bytes(broken), answer.text)
