"""Bugs of the runtime: what is lost, comes late, or whose caller has left."""

from __future__ import annotations

from radixtide.actors import op_admin
from radixtide.actors.system import ActorSystem, PendingReply
from support.planted.patching import Planted

PROTOCOL = (
    Planted(
        "a_dropped_answer_is_not_undone",
        "K8",
        "the lock of a match whose caller left is nobody's",
        ActorSystem.dropped,
        "if undo is not None and envelope.receiver.open:",
        "if undo is not None and envelope.gives:",
    ),
    Planted(
        "a_lost_answer_is_not_undone",
        "K8",
        "what a call took is nobody's when its answer was lost and its caller leaves then",
        PendingReply._abandon,
        "if known is not None and not envelope.settled:",
        "if known is not None and envelope.settled:",
    ),
    Planted(
        "what_undoes_waits_its_turn",
        "K8",
        "what a cancelled call took goes back behind the mail that came since, not before it",
        ActorSystem.notify,
        "cell.enqueue_first(",
        "cell.enqueue(",
    ),
    Planted(
        "what_is_lost_is_sent_again_once",
        "K12",
        "a message that is lost twice is not asked for any more",
        ActorSystem._send_again,
        "self.loop.call_later(self.resend_after_s, self._send_again, envelope)",
        "envelope.withdrawn = False",
    ),
    Planted(
        "a_repair_forgets_transfers",
        "K8",
        "the repair after a crash counts no pins of transfers that are under way",
        op_admin.repair,
        "jobs = None if state.tiers is None else state.tiers.jobs.pins()",
        "jobs = None",
        tiers="host",
    ),
    Planted(
        "a_reset_goes_on_under_transfers",
        "K8",
        "a reset is made while bytes are on their way",
        op_admin.reset,
        'holders += [f"{job.kind} {job.number} of {job.units} units" for job in tiers.jobs]',
        "holders += []",
        tiers="host",
    ),
)
