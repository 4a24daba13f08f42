"""``--verify``: whose token each slot holds, and whether the cache hands out the right ones."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.generators import Tokens
from benchmarks.sets import MARK_BYTES, WINDOW
from radixtide import UnifiedRadixCache
from radixtide.components.api import AllocateResult, MatchPrefixParams
from radixtide.components.request import Request
from radixtide.tiers.state_pool import StatePool
from radixtide.tree.key import RadixKey


class WrongAnswerError(AssertionError):
    """The cache gave indices of other tokens, lost a slot, or failed its own audit."""


class Verifier:
    """Follows what the engine would have written, slot by slot, and compares.

    * Full slots and SWA slots: which token was last computed into them.
    * States: they have bytes here, and those are a digest of the tokens that a state belongs to.

    Args:
        name: of the workload, for messages.
        cache: an open cache of ``config_for(..., verify=True)``.
    """

    def __init__(self, name: str, cache: UnifiedRadixCache) -> None:
        pools, page = cache.config.pools, cache.page_size
        self.name = name
        self.cache = cache
        self.checked = 0
        self._full = _unwritten(pools.full.size + page)
        self._swa = _unwritten(pools.swa.size + page) if pools.swa is not None else None
        states = cache.memory.get("mamba")
        self._states = states if isinstance(states, StatePool) else None

    def computed(self, taken: AllocateResult, tokens: Tokens) -> None:
        """Note that `tokens` were computed into the slots that were `taken` for them."""
        self._full[taken.indices.numpy()] = tokens
        if self._swa is not None:
            assert taken.swa_indices is not None
            self._swa[taken.swa_indices.numpy()] = tokens

    def wrote_state(self, slot: int, tokens: Tokens) -> None:
        """Write the state of `tokens` to `slot`."""
        if self._states is not None:
            self._states.conv[0][slot] = _mark(tokens)

    async def check(self, tokens: Tokens, indices: torch.Tensor) -> None:
        """Check that `indices`, and the SWA slots bound to them, hold the first of `tokens`."""
        if not np.array_equal(self._full[indices.numpy()], tokens[: len(indices)]):
            raise WrongAnswerError(
                f"{self.name}: a list of {len(indices)} indices is not that of its tokens"
            )
        if self._swa is not None:
            await self._check_window(self._swa, tokens, indices)
        self.checked += 1

    async def check_match(self, tokens: Tokens, indices: torch.Tensor) -> None:
        """Check what a match of `tokens` found, its state too."""
        await self.check(tokens, indices)
        if self._states is not None and len(indices):
            await self._check_state(self._states, tokens, len(indices))

    async def _check_window(
        self, written: npt.NDArray[np.int64], tokens: Tokens, indices: torch.Tensor
    ) -> None:
        """Check that the last window is there, and that all SWA slots are those tokens'."""
        slots = (await self.cache.component_slots("swa", indices)).numpy()
        if (slots[-WINDOW:] < 0).any():
            raise WrongAnswerError(
                f"{self.name}: {len(indices)} tokens are cached, but not the SWA slots of all of "
                "their last window"
            )
        kept = slots >= 0
        if not np.array_equal(written[slots[kept]], tokens[: len(slots)][kept]):
            raise WrongAnswerError(
                f"{self.name}: SWA slots of {len(indices)} tokens are not those tokens'"
            )

    async def _check_state(self, states: StatePool, tokens: Tokens, length: int) -> None:
        """Match once more with a copy of the state, and look at the copy."""
        reader = Request("reads the state", tokens)
        again = await self.cache.match_prefix(
            MatchPrefixParams(key=RadixKey(tokens), req=reader, cow_mamba=True)
        )
        slot = reader.mamba_pool_idx
        same = len(again.device_indices) == length and slot is not None
        if not same or not torch.equal(states.conv[0][slot], _mark(tokens[:length])):
            raise WrongAnswerError(
                f"{self.name}: the state copied from a match of {length} tokens is not that of "
                "those tokens"
            )
        await self.cache.abort_req(reader)

    async def finish(self) -> None:
        """Audit the cache."""
        report = await self.cache.audit()
        if not report.ok:
            raise WrongAnswerError(f"{self.name}: {report.violations}")


def _unwritten(slots: int) -> npt.NDArray[np.int64]:
    # Slot numbers may start past a reserved page.
    return np.full(slots, -1, dtype=np.int64)


def _mark(tokens: Tokens) -> torch.Tensor:
    """Return what stands for the state of `tokens`."""
    digest = hashlib.blake2b(tokens.tobytes(), digest_size=MARK_BYTES).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.int8)


__all__ = ("Verifier", "WrongAnswerError")
