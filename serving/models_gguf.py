"""Models in a ``.gguf`` file, and a converted copy of them that loads in a tenth of the time.

Reading such a file takes Transformers most of a minute, as it walks through the vocabulary several
times. So what came of it is kept in the user's cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``,
then ``radixtide/models``), under the digest of the file: a changed file never meets an old copy.
``RADIXTIDE_MODELS`` names another folder; where it is empty, nothing is kept, as where the folder
can not be written. What is in it may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from radixtide.serving.errors import ModelUnusable

FORMAT: Final = "1"
"""Changes when the copies do, so that none of an older form is read."""

_logger = logging.getLogger(__name__)


def load_gguf(path: Path, dtype: torch.dtype) -> tuple[Any, Any, str]:
    """Return model, tokenizer and digest of the GGUF file at `path`.

    Raises:
        ModelUnusable: the file can not be read, or is of a kind that Transformers does not know.
    """
    digest = _digest(path)
    copy = _copy_of(path, digest)
    if copy is not None and (copy / "config.json").is_file():
        try:
            return *_load_copy(copy, dtype), digest
        except unreadable() as error:
            _logger.warning("the copy of %s in %s can not be used: %s", path.name, copy, error)
    model, tokenizer = _convert(path, torch.float32)
    if copy is not None:
        _keep(copy, model, tokenizer)
    return model.to(dtype), tokenizer, digest


def unreadable() -> tuple[type[Exception], ...]:
    """Return what Transformers raises of files that are damaged, missing or of another kind."""
    from safetensors import SafetensorError  # noqa: PLC0415  # comes with Transformers

    return OSError, ValueError, KeyError, IndexError, RuntimeError, SafetensorError


def is_quick(path: Path) -> bool:
    """Return whether there is a copy of the GGUF file at `path`, so that loading takes seconds."""
    copy = _copy_of(path, _digest(path))
    return copy is not None and (copy / "config.json").is_file()


def copies_folder() -> Path | None:
    """Return the folder of the converted copies, which need not exist; None: none are kept."""
    named = os.environ.get("RADIXTIDE_MODELS")
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "radixtide" / "models"


def _copy_of(path: Path, digest: str) -> Path | None:
    folder = copies_folder()
    return None if folder is None else folder / f"{path.stem}-{digest[:16]}-{FORMAT}"


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelUnusable(f"{path}: can not be read: {error.strerror}") from None


def _convert(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  # takes seconds

    folder, name = str(path.parent), path.name
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=dtype, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True)
    except ImportError as error:
        raise ModelUnusable(
            f"{path}: reading GGUF needs more packages: pip install 'radixtide[serve]' ({error})"
        ) from None
    except unreadable() as error:
        raise ModelUnusable(f"{path}: Transformers can not load this model: {error}") from error
    return model, tokenizer


def _load_copy(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  # takes seconds

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _keep(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write a copy beside its place and move it there in one step; a failure is only told."""
    beside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        # A fresh model of the same config: what was read from GGUF refuses to be saved, though its
        # weights are plain numbers by now.
        config = model.config.to_dict()
        config.pop("quantization_config", None)
        plain = type(model)(type(model.config).from_dict(config)).to(model.dtype)
        plain.load_state_dict(model.state_dict())
        plain.generation_config = model.generation_config
        plain.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        beside.rename(folder)
    except OSError as error:
        _logger.info("no copy of the model is kept in %s: %s", folder.parent, error)
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
