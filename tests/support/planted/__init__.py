"""Bugs that are planted in the product for the time of a test: the simulator must find each."""

from __future__ import annotations

from support.planted.leaks import LEAKS
from support.planted.locks import LOCKS
from support.planted.patching import Planted, broken_code, function_of, planted
from support.planted.protocol import PROTOCOL
from support.planted.slots import SLOTS
from support.planted.splits import SPLITS
from support.planted.states import STATES
from support.planted.storage import STORAGE
from support.planted.tiers import TIERS
from support.planted.windows import WINDOWS

BUGS: tuple[Planted, ...] = (
    *LOCKS,
    *SPLITS,
    *WINDOWS,
    *STATES,
    *SLOTS,
    *PROTOCOL,
    *TIERS,
    *STORAGE,
    *LEAKS,
)

__all__ = ("BUGS", "Planted", "broken_code", "function_of", "planted")
