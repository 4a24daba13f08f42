"""What operators see and do: statistics, metrics, flushing, pinning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from radixtide.configs.schema import PinsConfig
from radixtide.serving.geometry import cache_config
from radixtide.serving.models import load_model
from support.server import MODEL, ThreadedServer

PAGE = 8
TEXT = "x" * 40


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    model = load_model(MODEL)
    cache = replace(cache_config(model, tokens=1024, page_size=PAGE), pins=PinsConfig(budget=64))
    with ThreadedServer(model=model, cache=cache) as opened:
        yield opened
        opened.assert_clean()


def ask(server: ThreadedServer, text: str, **fields: Any) -> Any:
    """Return the usage of a completion of one token."""
    body = {"model": MODEL, "prompt": text, "max_tokens": 1, **fields}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


def cached(server: ThreadedServer, text: str, **fields: Any) -> int:
    tokens: int = ask(server, text, **fields)["prompt_tokens_details"]["cached_tokens"]
    return tokens


def metrics(server: ThreadedServer) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and the values of its labels, by the labels' names."""
    page = server.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }


def test_metrics_count_what_was_done(server: ThreadedServer) -> None:
    before, text = metrics(server), "counted once, counted twice"
    ask(server, text)
    ask(server, text)
    server.post("/v1/completions", {"model": "nobody", "prompt": "x"})
    server.get("/made/up/by/a/client")
    now = metrics(server)

    def grew(*name: str) -> float:
        return now[name] - before.get(name, 0.0)

    assert grew("radixtide_http_requests_total", "/v1/completions", "200") == 2
    assert grew("radixtide_http_requests_total", "/v1/completions", "404") == 1
    assert grew("radixtide_http_requests_total", "other", "404") == 1
    assert grew("radixtide_prompt_tokens_total") == 2 * len(text)
    assert grew("radixtide_output_tokens_total") == 2
    assert grew("radixtide_cached_tokens_total", "device") == len(text) // PAGE * PAGE
    assert grew("radixtide_requests_finished_total", "length") == 2
    assert grew("radixtide_time_to_first_token_seconds_count") == 2
    assert (
        now["radixtide_time_to_first_token_seconds_bucket", "+Inf"]
        == (now[("radixtide_time_to_first_token_seconds_count",)])
    )
    assert not any("made" in part for name in now for part in name)
    states = ("free", "evictable", "protected", "held", "in_flight")
    slots = [now["radixtide_pool_slots", "full", state, "device"] for state in states]
    assert sum(slots) == 1024
    assert now["radixtide_pool_slots", "full", "held", "device"] == 0


def test_stats_tell_of_engine_and_cache(server: ThreadedServer) -> None:
    ask(server, "stats of this")
    stats = server.settled()
    assert stats["model"] == MODEL
    assert stats["uptime_s"] > 0
    assert stats["held"] == {"slots": 0, "receipts": 0, "requests": 0}
    assert stats["finished"]["length"] >= 1
    assert stats["cache"]["pools"]["full"]["device"]["size"] == 1024


def test_a_flush_drops_what_is_cached(server: ThreadedServer) -> None:
    ask(server, TEXT)
    assert cached(server, TEXT) > 0
    for tier in ("host", "device"):
        answer = server.post("/admin/flush", {"tier": tier})
        assert answer.status_code == 200, answer.text
        assert answer.json()["tier"] == tier
    assert answer.json()["dropped"] >= 32
    assert cached(server, TEXT) == 0


@pytest.mark.parametrize("what", [{"text": TEXT}, {"tokens": [120] * 40}])
def test_a_pinned_prefix_outlives_a_flush(server: ThreadedServer, what: dict[str, Any]) -> None:
    ask(server, TEXT)
    pinned = server.post("/admin/pin", {**what, "ttl_s": 60})
    assert pinned.json() == {"tokens": 40, "pinned": 40, "budget_left": 24, "ttl_s": 60}
    for tier in ("device", "host"):
        server.post("/admin/flush", {"tier": tier})
    assert cached(server, TEXT + "more") == 40
    assert server.post("/admin/unpin", what).json() == {"tokens": 40, "was_pinned": True}
    assert server.post("/admin/unpin", what).json() == {"tokens": 40, "was_pinned": False}
    for tier in ("device", "host"):
        server.post("/admin/flush", {"tier": tier})
    assert cached(server, TEXT) == 0


def test_a_pin_of_a_chat_is_of_its_template(server: ThreadedServer) -> None:
    messages = [{"role": "system", "content": "Be kind to all."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1}
    assert server.post("/v1/chat/completions", body).status_code == 200
    pinned = server.post("/admin/pin", {"messages": messages}).json()
    assert pinned["pinned"] > 16
    assert server.post("/admin/unpin", {"messages": messages}).json()["was_pinned"]


def test_a_pin_is_in_the_part_of_the_cache_that_its_salt_names(server: ThreadedServer) -> None:
    ask(server, "salted" * 8, cache_salt="s")
    refused = server.post("/admin/pin", {"text": "salted" * 8})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "refused"
    pinned = server.post("/admin/pin", {"text": "salted" * 8, "cache_salt": "s"})
    assert pinned.json()["pinned"] == 48
    server.post("/admin/unpin", {"text": "salted" * 8, "cache_salt": "s"})


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/admin/flush", {"tier": "attic"}, 400, "'attic' is none of device, host, storage"),
        ("/admin/flush", {}, 400, "tier: is missing"),
        ("/admin/flush", {"tier": "host", "now": True}, 400, "now: is not known here"),
        ("/admin/flush", {"tier": "host", "timeout_s": 61}, 400, "timeout_s: expected float <= 60"),
        ("/admin/pin", {}, 400, "send one of text, tokens and messages"),
        ("/admin/pin", {"text": "a", "tokens": [1]}, 400, "found text and tokens"),
        ("/admin/pin", {"text": ""}, 400, "text: is empty"),
        ("/admin/pin", {"text": "a", "ttl_s": -1}, 400, "ttl"),
        ("/admin/pin", {"tokens": [-1]}, 400, ""),
        ("/admin/pin", {"text": "never asked for"}, 409, ""),
    ],
)
def test_a_wrong_call_of_an_operator_says_what_to_do(
    server: ThreadedServer, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answer = server.post(path, body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]


def test_a_form_of_another_web_page_can_not_flush(server: ThreadedServer) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
        answer = server.post("/admin/flush", b'{"tier": "device"}', headers={"content-type": kind})
        assert answer.status_code == 415
