"""Who answers in ``radixtide chat``: a server over HTTP, or an engine in this process."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from radixtide.configs.errors import InvalidInput, RadixtideError

Message = dict[str, str]

CONNECT_S = 10.0
ANSWER_S = 600.0
"""How long a server may be silent."""


class ServerRefused(RadixtideError):
    """A server could not be reached, or did not answer; says why."""


@dataclass(slots=True)
class Taken:
    """What a turn took. Times in seconds; tokens of the prompt that were cached, by tier."""

    prompt: int = 0
    cached: dict[str, int] = field(default_factory=dict)
    output: int = 0
    first_s: float | None = None
    total_s: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.prompt:,} tokens in"]
        tiers = [f"{tokens:,} from {tier}" for tier, tokens in self.cached.items() if tokens]
        cached = sum(self.cached.values())
        parts.append(f"{cached:,} cached" + (f" ({', '.join(tiers)})" if tiers else ""))
        if self.first_s is not None:
            parts.append(f"first token after {self.first_s * 1000:,.0f} ms")
        parts.append(f"{self.output:,} out in {self.total_s:.1f} s")
        return ", ".join(parts)


class Talker(Protocol):
    """Who answers. ``name``: of the model; ``taken``: what the last turn took."""

    name: str
    taken: Taken

    def answer(self, messages: Sequence[Message]) -> Generator[str]:
        """Yield the next answer, piece by piece; closed early, it is given up."""
        ...


class ServerTalker:
    """Talks to a server of the OpenAI API at `url`.

    Raises:
        InvalidInput: `url` is none. ServerRefused: it can not be reached.
    """

    def __init__(self, url: str, api_key: str, max_tokens: int, temperature: float) -> None:
        self._url = _checked(url)
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._options = {"max_tokens": max_tokens, "temperature": temperature}
        self.taken = Taken()
        self.name = self._model()

    def _model(self) -> str:
        connection = self._connect()
        try:
            with self._ask(connection, "GET", "models") as answer:
                found = json.loads(answer.read())
            return str(found["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ServerRefused(f"{self._url.geturl()}: this is no OpenAI API") from None
        finally:
            connection.close()

    def answer(self, messages: Sequence[Message]) -> Generator[str]:
        """Yield the next answer. Raises ServerRefused."""
        body = {
            "model": self.name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
        }
        self.taken = taken = Taken()
        begun = perf_counter()
        connection = self._connect()
        try:
            with self._ask(connection, "POST", "chat/completions", body) as answer:
                for chunk in self._events(answer):
                    if usage := chunk.get("usage"):
                        _read_usage(usage, taken)
                    for choice in chunk.get("choices", ()):
                        text = choice.get("delta", {}).get("content")
                        if text:
                            if taken.first_s is None:
                                taken.first_s = perf_counter() - begun
                            yield text
        finally:
            taken.total_s = perf_counter() - begun
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = (
            http.client.HTTPSConnection
            if self._url.scheme == "https"
            else http.client.HTTPConnection
        )
        assert self._url.hostname is not None
        return kind(self._url.hostname, self._url.port, timeout=CONNECT_S)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any = None
    ) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.connect()
            connection.sock.settimeout(ANSWER_S)
            connection.request(method, f"{self._url.path}/{path}", data, self._headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ServerRefused(
                f"{self._url.geturl()}: can not be reached ({error}); "
                "is `radixtide serve` running there?"
            ) from None
        if answer.status != http.client.OK:
            raise ServerRefused(f"{answer.status} {_reason(answer.read())}")
        return answer

    def _events(self, answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        try:
            for line in answer:
                kind, _, data = line.partition(b": ")
                if kind != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    return
                chunk = json.loads(data)
                if error := chunk.get("error"):
                    raise ServerRefused(str(error.get("message", error)))
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise ServerRefused(f"the answer broke off: {error}") from None
        raise ServerRefused("the answer broke off: the server closed the connection")


def _checked(url: str) -> SplitResult:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"--url {url}: needs a URL such as http://127.0.0.1:8000")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith("/v1") else f"{path}/v1")


def _reason(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return data[:200].decode("utf-8", "replace")


def _read_usage(usage: dict[str, Any], taken: Taken) -> None:
    """Read what the server says of a turn; other servers tell less than this one."""
    taken.prompt = usage.get("prompt_tokens", 0)
    taken.output = usage.get("completion_tokens", 0)
    reports = usage.get("radixtide")
    if reports:
        taken.cached = {
            tier: reports[0][f"cached_{tier}"] for tier in ("device", "host", "storage")
        }
        return
    details = usage.get("prompt_tokens_details") or {}
    taken.cached = {"the server's cache": details.get("cached_tokens") or 0}
