"""Bugs of storage and of namespaces."""

from __future__ import annotations

from radixtide.tree import key
from support.planted.patching import Planted

STORAGE = (
    Planted(
        "an_adapter_is_as_good_as_a_salt",
        "K13",
        "an adapter and a salt of one name are one namespace",
        key.namespace_bytes,
        "return NAMESPACE_TAG + _frame(extra_key) + _frame(cache_salt)",
        "return NAMESPACE_TAG + _frame(None) + _frame(extra_key or cache_salt)",
    ),
)
