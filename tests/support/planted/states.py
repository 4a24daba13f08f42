"""Bugs of recurrent states."""

from __future__ import annotations

from radixtide.actors import op_match
from radixtide.components.mamba import MambaComponent
from radixtide.components.request import Request
from support.planted.patching import Planted

WITH_STATES = ("full", "mamba")
WITH_BOTH = ("full", "swa", "mamba")

STATES = (
    Planted(
        "a_state_is_not_copied",
        "K4",
        "a match hands out a working slot and leaves it as it was",
        MambaComponent.finalize_match_result,
        "self.copy_state(int(data.value[0]), int(working[0]))",
        "copy_nothing(int(data.value[0]), int(working[0]))",
        components=WITH_STATES,
    ),
    Planted(
        "a_forked_state_is_empty",
        "K4",
        "a running request without a ring gives the tree a slot without the state in it",
        MambaComponent._donate,
        "self.copy_state(own, fresh)",
        "copy_nothing(own, fresh)",
        components=WITH_STATES,
    ),
    Planted(
        "the_other_state_of_the_ring",
        "K4",
        "the tree gets the state that is written next, not the one written last",
        MambaComponent._source,
        "newest = 1 + (req.mamba_next_track ^ 1)",
        "newest = 1 + req.mamba_next_track",
        components=WITH_STATES,
    ),
    Planted(
        "a_request_goes_on_with_the_trees_state",
        "K4",
        "a request that gave a state away writes on into the same slot",
        Request.swap_state,
        "fresh if slot == given else slot for slot in self.mamba_ping_pong",
        "slot for slot in self.mamba_ping_pong",
        components=WITH_STATES,
    ),
    Planted(
        "a_cancelled_match_keeps_its_copy",
        "K4",
        "a match whose caller left gives its lock back, and not the slot of its state",
        op_match.undo_match,
        "copied = p.copied and entry is not None and bool(entry.fresh)",
        "copied = p.copied and entry is not None and held is None",
        components=WITH_STATES,
    ),
    Planted(
        "only_the_last_component_votes",
        "K4",
        "a match is as long as the first and the last component say, whatever those between do",
        op_match.longest_common,
        "common = set(first).intersection(*votes[1:])",
        "common = set(first).intersection(votes[-1])",
        components=WITH_BOTH,
        tiers="device",
    ),
    Planted(
        "a_state_is_taken_at_another_length",
        "K4",
        "a match ends inside a node with the state of the node's end",
        MambaComponent.validate_path,
        "at for at, node in enumerate(path, 1) if node.component_data[index].value is not None",
        "at for at, node in enumerate([*path, inside] if inside else path, 1)"
        " if node.component_data[index].value is not None",
        components=WITH_STATES,
        tiers="device",
    ),
)
