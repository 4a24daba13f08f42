"""The official client, unchanged, against a real server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from radixtide.serving.http.config import ApiKey, ServerConfig
from support.server import MODEL, ThreadedServer

SYSTEM = "You are a patient assistant who answers in few words. " * 4


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    with ThreadedServer() as opened:
        yield opened


def chat(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def test_a_chat_is_answered_whole(server: ThreadedServer) -> None:
    answer = server.openai.chat.completions.create(
        model=MODEL, messages=chat("whole"), max_tokens=12, temperature=0
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_streamed_chat_has_the_text_of_the_whole_one(server: ThreadedServer) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": chat("stream"),
        "max_tokens": 24,
        "temperature": 0,
    }
    whole = server.openai.chat.completions.create(**asked)
    chunks = list(
        server.openai.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
    )
    *parts, last = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert [part.choices[0].finish_reason for part in parts][-1] == "length"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 24
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_tells_no_usage_where_none_was_asked_for(server: ThreadedServer) -> None:
    chunks = list(
        server.openai.chat.completions.create(
            model=MODEL, messages=chat("bare"), max_tokens=2, stream=True
        )
    )
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


async def test_the_async_client_streams_too(server: ThreadedServer) -> None:
    async with server.async_openai as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=chat("async"), max_tokens=8, stream=True, temperature=0
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        whole = await client.chat.completions.create(
            model=MODEL, messages=chat("async"), max_tokens=8, temperature=0
        )
    assert text == whole.choices[0].message.content


def test_the_second_request_of_a_prompt_tells_what_was_cached(server: ThreadedServer) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": chat("cached?"), "max_tokens": 1}
    server.openai.chat.completions.create(**asked)
    usage = server.openai.chat.completions.create(**asked).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    page = 8
    cached = (usage.prompt_tokens - 1) // page * page
    assert usage.prompt_tokens_details.cached_tokens == cached
    (report,) = usage.model_dump()["radixtide"]
    assert report["cached_device"] == cached
    assert report["computed_tokens"] == usage.prompt_tokens - cached
    assert report["miss_reason"] in ("unaligned_tail", "complete")


def test_a_salt_shares_with_nobody_else(server: ThreadedServer) -> None:
    def cached(salt: str | None) -> int:
        usage = server.openai.chat.completions.create(
            model=MODEL,
            messages=chat("salted"),
            max_tokens=1,
            extra_body={} if salt is None else {"cache_salt": salt},
        ).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    assert cached("a") == 0
    assert cached("a") > 0
    assert cached("b") == 0
    cached(None)
    assert cached("c") == 0


def test_several_choices_are_drawn_apart_and_repeat_with_their_seed(
    server: ThreadedServer,
) -> None:
    def texts(seed: int) -> list[str | None]:
        answer = server.openai.chat.completions.create(
            model=MODEL, messages=chat("n"), max_tokens=8, n=3, seed=seed, temperature=1.0
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 24
        return [choice.message.content for choice in answer.choices]

    first = texts(11)
    assert len(set(first)) > 1
    assert texts(11) == first
    assert texts(-5) != first


def test_several_choices_stream_beside_each_other(server: ThreadedServer) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": chat("beside"),
        "max_tokens": 6,
        "n": 3,
        "seed": 4,
    }
    texts = ["", "", ""]
    ends: dict[int, str | None] = {}
    for chunk in server.openai.chat.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason is not None:
            ends[choice.index] = choice.finish_reason
    whole = server.openai.chat.completions.create(**asked)
    assert texts == [choice.message.content for choice in whole.choices]
    assert [ends[index] for index in range(3)] == [one.finish_reason for one in whole.choices]


def test_log_probabilities_of_a_chat_are_of_its_tokens(server: ThreadedServer) -> None:
    answer = server.openai.chat.completions.create(
        model=MODEL,
        messages=chat("logs"),
        max_tokens=5,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert len(content) == 5
    for token in content:
        assert token.logprob <= 0
        assert token.bytes is not None
        assert len(token.bytes) == 1, "the model's tokens are bytes"
        # Greedy: the token is the likeliest, and these come in order.
        assert token.top_logprobs[0].bytes == token.bytes
        told = [one.logprob for one in token.top_logprobs]
        assert told == sorted(told, reverse=True)
        assert token.logprob == pytest.approx(told[0])
    streamed = [
        entry
        for chunk in server.openai.chat.completions.create(
            model=MODEL,
            messages=chat("logs"),
            max_tokens=5,
            temperature=0,
            logprobs=True,
            top_logprobs=3,
            stream=True,
        )
        if (found := chunk.choices[0].logprobs) is not None
        for entry in found.content or ()
    ]
    assert [entry.bytes for entry in streamed] == [entry.bytes for entry in content]


def first_letters(server: ThreadedServer, count: int) -> str:
    """Return text that greedy decoding makes after one prompt of text, whole ASCII letters only."""
    for number in range(200):
        text = (
            server.openai.completions.create(
                model=MODEL, prompt=f"try {number}", max_tokens=30, temperature=0
            )
            .choices[0]
            .text
        )
        start = next(
            (at for at in range(len(text) - count) if text[at : at + count].isascii()), None
        )
        if start:
            return f"try {number}\0{text[: start + count]}"
    raise AssertionError("no letters in 200 answers")


def test_an_answer_ends_before_a_stop_string(server: ThreadedServer) -> None:
    prompt, _, text = first_letters(server, 2).partition("\0")
    stop = text[-2:]
    before = text[: text.index(stop)]
    answer = server.openai.completions.create(
        model=MODEL, prompt=prompt, max_tokens=30, temperature=0, stop=[stop, "never there"]
    )
    assert answer.choices[0].text == before
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens < 30
    chunks = list(
        server.openai.completions.create(
            model=MODEL, prompt=prompt, max_tokens=30, temperature=0, stop=stop, stream=True
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == before
    assert chunks[-1].choices[0].finish_reason == "stop"
    server.assert_clean()


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", 1),
        (["text"], 1),
        (["text", "another"], 2),
        ([116, 101, 120, 116], 1),
        ([[116, 101, 120, 116], [1, 2, 3]], 2),
    ],
    ids=["text", "one text", "texts", "tokens", "lists of tokens"],
)
def test_a_prompt_may_be_of_five_kinds(server: ThreadedServer, prompt: Any, prompts: int) -> None:
    answer = server.openai.completions.create(
        model=MODEL, prompt=prompt, max_tokens=4, temperature=0, n=2
    )
    assert [choice.index for choice in answer.choices] == list(range(2 * prompts))
    texts = [choice.text for choice in answer.choices]
    assert texts[::2] == texts[1::2], "greedy choices of one prompt are alike"
    assert answer.usage is not None
    sizes = {1: 4, 2: 4 + (7 if prompt[0] == "text" else 3)}
    assert answer.usage.prompt_tokens == sizes[prompts]
    same = server.openai.completions.create(model=MODEL, prompt="text", max_tokens=4, temperature=0)
    assert texts[0] == same.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_echoed_where_that_is_asked_for(server: ThreadedServer, stream: bool) -> None:
    def text(prompt: Any, **asked: Any) -> str:
        asked = {"model": MODEL, "prompt": prompt, "max_tokens": 3, "temperature": 0, **asked}
        if not stream:
            whole: str = server.openai.completions.create(**asked).choices[0].text
            return whole
        chunks = server.openai.completions.create(**asked, stream=True)
        return "".join(chunk.choices[0].text for chunk in chunks)

    plain = text("dear")
    assert text("dear", echo=True) == "dear" + plain
    assert text([100, 101, 97, 114], echo=True) == "dear" + plain


def test_log_probabilities_of_a_completion_have_offsets(server: ThreadedServer) -> None:
    answer = server.openai.completions.create(
        model=MODEL, prompt="offsets", max_tokens=12, temperature=0, logprobs=2
    )
    (choice,) = answer.choices
    told = choice.logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.text_offset is not None
    assert told.top_logprobs is not None
    assert len(told.tokens) == len(told.text_offset) == len(told.top_logprobs) == 12
    for token, offset in zip(told.tokens, told.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[offset : offset + len(token)] == token
    assert all(len(top) == 2 for top in told.top_logprobs)


def test_greedy_tokens_do_not_depend_on_who_else_is_served(server: ThreadedServer) -> None:
    def ask(number: int) -> str:
        return (
            server.openai.completions.create(
                model=MODEL, prompt=f"{SYSTEM}{number}", max_tokens=12, temperature=0
            )
            .choices[0]
            .text
        )

    alone = [ask(number) for number in range(6)]

    async def together() -> list[str]:
        async with server.async_openai as client:
            answers = await asyncio.gather(
                *(
                    client.completions.create(
                        model=MODEL, prompt=f"{SYSTEM}{number}", max_tokens=12, temperature=0
                    )
                    for number in range(6)
                )
            )
        return [answer.choices[0].text for answer in answers]

    assert asyncio.run(together()) == alone


def test_models_are_listed_as_the_client_expects(server: ThreadedServer) -> None:
    (card,) = server.openai.models.list().data
    assert card.id == MODEL
    assert server.openai.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="this server has 'random:llama'"):
        server.openai.models.retrieve("gpt-9")


def test_the_client_gets_typed_errors(server: ThreadedServer) -> None:
    client = server.openai
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=chat("x"))
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=MODEL, messages=chat("x"), temperature=-1)
    assert wrong.value.param == "temperature"


def test_a_server_with_keys_refuses_others_and_keeps_their_caches_apart() -> None:
    config = ServerConfig(
        port=0,
        keys={
            "alice": ApiKey(key="alice-secret", cache_salt="alice"),
            "bob": ApiKey(key="bob-secret", cache_salt="bob"),
            "operator": ApiKey(key="operator-secret", admin=True),
        },
    )
    with ThreadedServer(config) as server:

        def client(key: str) -> openai.OpenAI:
            return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)

        def cached(key: str, salt: str | None = None) -> int:
            usage = (
                client(key)
                .chat.completions.create(
                    model=MODEL,
                    messages=chat("keys"),
                    max_tokens=1,
                    extra_body={} if salt is None else {"cache_salt": salt},
                )
                .usage
            )
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            return usage.prompt_tokens_details.cached_tokens or 0

        with pytest.raises(openai.AuthenticationError, match="not known here"):
            client("mallory").models.list()
        with pytest.raises(openai.AuthenticationError, match="not known here"):
            client("alice-secre").chat.completions.create(model=MODEL, messages=chat("keys"))
        assert cached("alice-secret") == 0
        assert cached("alice-secret") > 0
        assert cached("bob-secret") == 0
        # A salt in the body does not lead out of the key's own part.
        assert cached("bob-secret", "alice") == 0
        assert cached("operator-secret", "alice") == 0

        # What tells of all together is for admins, whatever it is.
        for path in ("/stats", "/metrics", "/live"):
            assert server.get(path).status_code == 401
            for key, status in (("bob-secret", 403), ("operator-secret", 200)):
                headers = {"authorization": f"Bearer {key}"}
                with httpx.stream("GET", f"{server.url}{path}", headers=headers) as answer:
                    assert answer.status_code == status

        def flush(key: str | None) -> httpx.Response:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            return server.post("/admin/flush", {"tier": "device"}, headers=headers)

        assert flush(None).status_code == 401
        assert flush(None).headers["www-authenticate"] == "Bearer"
        refused = flush("bob-secret")
        assert refused.status_code == 403
        assert "server.keys.bob.admin" in refused.json()["error"]["message"]
        assert flush("operator-secret").status_code == 200
