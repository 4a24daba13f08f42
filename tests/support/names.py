"""Whether code names a component: the tree, the actors and the tiers must work with any.

Comments and docstrings may say what they like. An identifier is looked at word by word
(``swa_slots``, ``SwaPool``); in other strings the English word "full" is left alone.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from io import StringIO
from typing import Final

COMPONENTS: Final = ("full", "swa", "mamba")

FIELDS: Final = frozenset(
    {
        "cow_mamba",
        "dec_swa_lock_only",
        "full_kv_hit_length",
        "full_miss_reason",
        "mamba_branching_seqlen",
        "mamba_exist",
        "mamba_host_hit_length",
        "mamba_last_track_seqlen",
        "mamba_num",
        "mamba_num_evicted",
        "mamba_pool_idx",
        "mamba_value",
        "swa_branching_seqlen",
        "swa_host_hit_length",
        "swa_num_tokens",
        "swa_num_tokens_evicted",
    }
)
"""Public names that are fixed: people who come from other engines look for them."""

ENGLISH: Final = frozenset({"MailboxFull"})
"""Identifiers in which "full" is the English word."""

LIBRARIES: Final = ("np", "numpy", "torch")
"""``np.full`` and ``torch.full`` make arrays."""

POOL_FILES: Final = {
    "tiers/kv_pool.py": ("full", "swa"),
    "tiers/state_pool.py": ("mamba",),
}
"""Files that may name components: what their pool is for."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_FULL: Final = re.compile(r"""^full$|["'`.]full\b|\bfull["'`]|\bFull\b""")
_F_STRING_PART: Final = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)


def mentions(path: str, source: str) -> list[str]:
    """Return where `source` names a component though the file at `path` may not."""
    allowed = POOL_FILES.get(path, ())
    return [
        f"{path}:{line}: {shown}: names the component {name}"
        for line, shown, name in _named(source)
        if name not in allowed
    ]


def _named(source: str) -> Iterator[tuple[int, str, str]]:
    docstrings = _docstring_lines(source)
    before = ("", "")
    for token in tokenize.generate_tokens(StringIO(source).readline):
        text = token.string
        if token.type == tokenize.NAME:
            if not (text == "full" and before[1] == "." and before[0] in LIBRARIES):
                for name in _in_identifier(text):
                    yield token.start[0], text, name
        elif token.type in (tokenize.STRING, _F_STRING_PART) and token.start[0] not in docstrings:
            for name in _in_string(text):
                yield token.start[0], text, name
        before = (before[1], text)


def _docstring_lines(source: str) -> set[int]:
    """Return the lines of strings that are statements of their own."""
    return {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _in_identifier(text: str) -> Iterator[str]:
    if text not in FIELDS and text not in ENGLISH:
        yield from (word.lower() for word in _WORD.findall(text) if word.lower() in COMPONENTS)


def _in_string(text: str) -> Iterator[str]:
    inner = text.lstrip("rbfuRBFU").strip("\"'")
    if _FULL.search(inner):
        yield "full"
    for word in re.findall(r"\w+", inner):
        yield from (name for name in _in_identifier(word) if name != "full")
