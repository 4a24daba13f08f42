"""Bugs that break nothing: what is over is remembered for ever."""

from __future__ import annotations

from radixtide.actors import op_fetch, op_load_end
from radixtide.actors.conversing import ConversingCell
from radixtide.actors.tier_state import TierState
from support.planted.patching import Planted

LEAKS = (
    Planted(
        "a_closed_load_is_remembered",
        "K10",
        "what a load has is let go and stays noted",
        op_load_end.close_load,
        "del tiers.loads[p.number]",
        "pass",
        tiers="host",
    ),
    Planted(
        "a_fetch_that_was_given_up_is_remembered",
        "K11",
        "a fetch that was given up before its end stays noted",
        op_fetch._over,
        "del tiers.fetches[job.number]",
        "pass",
        tiers="storage",
    ),
    Planted(
        "a_node_that_left_is_still_waited_for",
        "K9",
        "what the state of a node waits for stays noted when the node leaves the tree",
        TierState.forget_node,
        "self.ready.pop(node.id, None)",
        "pass",
        tiers="host",
    ),
    Planted(
        "answers_to_what_was_given_up_are_kept",
        "K12",
        "a component keeps its answer to an operation that does not wait for it any more",
        ConversingCell._abandon,
        "asked.receiver.answered.pop(asked.correlation, None)",
        "asked.receiver.answered.get(asked.correlation)",
    ),
)
