"""The OpenAI API as data: what clients send and what they get. Fields are named as there.

Fields that are not listed are ignored, as the official client may send more; those that are listed
because they would change the answer, and are not supported, are refused: the API's own, and those
that other servers have added to it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from radixtide.serving.http.errors import ApiError, wrong_field

Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class StreamOptions(msgspec.Struct, frozen=True):
    """``include_usage``: the stream ends with a chunk that has no choices and the usage."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """Only ``text`` is supported."""

    type: str


class Unsupported(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that would change an answer; each by default asks for what happens anyway.

    Refused where they ask for anything else; null is as good as absent.
    """

    presence_penalty: float | None = 0
    frequency_penalty: float | None = 0
    repetition_penalty: float | None = 1
    length_penalty: float | None = 1
    logit_bias: dict[str, float] | None = {}
    min_p: float | None = 0
    min_tokens: int | None = 0
    use_beam_search: bool | None = False
    bad_words: Any = []
    allowed_token_ids: Any = []
    stop_regex: Any = []
    no_stop_trim: bool | None = False
    include_stop_str_in_output: bool | None = False
    skip_special_tokens: bool | None = True
    spaces_between_special_tokens: bool | None = True
    truncate_prompt_tokens: Any = None
    prompt_logprobs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = {}
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    tools: list[Any] | None = []
    functions: list[Any] | None = []
    response_format: ResponseFormat | None = ResponseFormat("text")


UNSUPPORTED: Final = msgspec.structs.asdict(Unsupported())
"""The value of each such field that asks for what happens anyway."""


class Asked(Unsupported, frozen=True, kw_only=True):
    """What requests of both kinds share.

    ``cache_salt``: what this request caches is shared only with requests of the same salt.
    ``priority``: higher goes first. ``top_k``, ``ignore_eos``, ``stop_token_ids``: as elsewhere.
    """

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: Priority | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message; only text is supported."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A message. ``content``: text, or parts of text."""

    role: str
    content: str | list[ContentPart] | None = None


class ChatRequest(Asked, frozen=True, kw_only=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionRequest(Asked, frozen=True, kw_only=True):
    """The body of ``POST /v1/completions``.

    ``prompt``: text, texts, token ids, or lists of token ids.
    """

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    best_of: int | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    """``cached_tokens``: tokens of the prompt that were not computed again."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request, over all its prompts and choices. A prompt counts once.

    ``radixtide``: the engine's report of each choice, in order of their index.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    radixtide: list[Any] = []


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served. ``max_model_len``: tokens of prompt and answer together."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "radixtide"


class ModelList(msgspec.Struct, frozen=True):
    """What ``GET /v1/models`` answers."""

    data: list[ModelCard]
    object: str = "list"


class FlushRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /admin/flush``. ``tier``: ``device``, ``host`` or ``storage``.

    ``timeout_s``: how long copies that are under way are waited for, before it is refused.
    """

    tier: str
    timeout_s: Annotated[float, Meta(ge=0, le=60)] = 5.0


class PinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /admin/pin`` and ``/admin/unpin``: one of text, tokens and messages.

    ``ttl_s``: seconds that a pin lasts. ``cache_salt``: as in the requests it is for.
    """

    text: str | None = None
    tokens: list[int] | None = None
    messages: list[ChatMessage] | None = None
    ttl_s: float = 3600.0
    cache_salt: str | None = None


Body = TypeVar("Body")

_PATH: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>\w+)`$")
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(?P<field>\w+)`$")


def read_body(data: bytes, kind: type[Body]) -> Body:
    """Return the JSON in `data` as a `kind`; ApiError (400) that names the field where it is not.

    Cost O(bytes).
    """
    if not data.strip():
        raise ApiError(400, "the body is empty; send a JSON object")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _validation(str(error)) from None
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise ApiError(
            400, f"the body is not UTF-8: {error.reason} at byte {error.start}"
        ) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None


def _validation(message: str) -> ApiError:
    """Return the refusal for what msgspec says, with its path as OpenAI writes those."""
    match = _PATH.match(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    field = path.removeprefix("$").lstrip(".")
    for pattern, saying in (
        (_MISSING, "is missing; the request needs it"),
        (_UNKNOWN, "is not known here; leave it out"),
    ):
        if found := pattern.match(what):
            name = f"{field}.{found['field']}" if field else found["field"]
            return wrong_field(name, saying)
    if not field:
        return ApiError(400, f"the body: {_plain(what)}; send a JSON object")
    return wrong_field(field, _plain(what))


def _plain(what: str) -> str:
    """Return msgspec's words as the rest of a sentence: ``expected ...``."""
    return what[:1].lower() + what[1:].replace("`", "")
