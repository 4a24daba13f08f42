"""The example's component with a hook that raises."""

from __future__ import annotations

from typing import Any

from support.plugin import SidecarClass

HOOKS = (
    "create_match_validator",
    "finalize_match_result",
    "check_insert",
    "apply_insert",
    "redistribute_on_node_split",
    "drive_eviction",
    "evict_nodes",
    "acquire_component_lock",
    "release_component_lock",
    "quote",
    "grant",
    "path_slots",
    "describe",
    "release_holding",
    "carrier_released",
    "cleanup_after_caching_req",
)


class Planted(Exception):
    """What a planted hook raises."""


def failing(hook: str, when: str, skip: int, times: int = 1) -> type[Any]:
    """Return the component with one hook that raises: so many calls pass first.

    `when`: "before" it has done anything, or "after" it has done everything.
    """
    left = {"skip": skip, "times": times}

    def planted(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(SidecarClass, hook)
        if left["skip"] or not left["times"]:
            left["skip"] = max(left["skip"] - 1, 0)
            return original(self, *args, **kwargs)
        left["times"] -= 1
        if when == "after":
            original(self, *args, **kwargs)
        raise Planted(hook)

    kind = type("Failing", (SidecarClass,), {hook: planted})
    kind.left = left  # type: ignore[attr-defined]  # for the test
    return kind
