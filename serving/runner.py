"""The model runner: rows of one forward pass in, logits out, all state in the cache's pools.

Rows of one token (requests that decode) run together as one batch, padded to the longest context.
A row of several tokens (a chunk of a prompt) runs alone, as does one whose load is still under way,
so that nobody else waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.configs.errors import CallTimeout, ConfigError, LoadFailed
from radixtide.serving import masks
from radixtide.serving.geometry import pool_layers, pool_shape
from radixtide.serving.models import Kind, LoadedModel
from radixtide.serving.pool_cache import Places, PoolCache, Scratch, States
from radixtide.serving.row_checks import check_rows
from radixtide.serving.rows import Outcome, Row

LOAD_TIMEOUT_S: Final = 60.0

_NAMED_MASKS: Final = ("qwen2", "qwen3", "gemma3_text", "qwen3_next", "lfm2")
"""Architectures that take a mask for each kind of layer, by name; the others take one."""

_logger = logging.getLogger(__name__)


class ModelRunner:
    """Runs forward passes of `model` on the pools of `cache`.

    Blocking: call :meth:`forward` in a worker thread, from one thread at a time. Nothing of it
    awaits or touches the tree; it reads and writes the slots that the rows name, and no others.

    `load_timeout_s`: how long one layer of a load is waited for; after that its row is lost.

    Raises:
        ConfigError: the cache's pools are not those of the model.
    """

    def __init__(
        self,
        model: LoadedModel,
        cache: UnifiedRadixCache,
        *,
        load_timeout_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        self.model = model
        self.load_timeout_s = load_timeout_s
        self._memory = _memory_for(model, cache)
        self._sizes = {name: pool.size for name, pool in self._memory.items()}
        self._layers = pool_layers(model)
        self._scratch = Scratch()
        self._last = max(at for _, at in self._layers)
        self._named = model.family in _NAMED_MASKS

    def forward(self, rows: Sequence[Row]) -> list[Outcome]:
        """Compute `rows` and return what came of each, in the same order.

        When it returns, all is written: slots, states and copies of states, on an accelerator too.
        Cost: one pass of the model for all rows of one token, and one for each other row.

        Raises:
            InvalidRow: a row is wrong; nothing was computed.
        """
        check_rows(rows, self.model, self._sizes)
        outcomes: list[Outcome] = [Outcome(lost=True)] * len(rows)
        together: list[int] = []
        alone: list[int] = []
        for at, row in enumerate(rows):
            (together if len(row.tokens) == 1 and self._has_arrived(row) else alone).append(at)
        with torch.inference_mode():
            for batch in [together, *([at] for at in alone)]:
                found = self.run([rows[at] for at in batch]) if batch else []
                for at, outcome in zip(batch, found, strict=True):
                    outcomes[at] = outcome
            if self.model.device.type == "cuda":
                torch.cuda.current_stream(self.model.device).synchronize()
        return outcomes

    def run(self, rows: list[Row]) -> list[Outcome]:
        """Run one pass of the model: one row of any length, or several of one token each."""
        cache = self.make_cache(rows)
        tokens = torch.from_numpy(np.stack([row.tokens for row in rows])).to(self.model.device)
        starts = torch.tensor([row.start for row in rows], device=self.model.device)
        steps = torch.arange(tokens.shape[1], device=self.model.device)
        try:
            answer = self.model.model(
                input_ids=tokens,
                position_ids=starts[:, None] + steps,
                attention_mask=self.make_masks(rows),
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            # Digests of a load are known with its last layer: until then it may turn out wrong.
            cache.wait(self._last)
        except (LoadFailed, CallTimeout) as error:
            _logger.info("request %r lost what was being loaded: %s", rows[0].rid, error)
            return [Outcome(lost=True)]
        self.keep_states(rows)
        logits = answer.logits[:, -1].float().cpu()
        return [Outcome(logits[at] if row.logits else None) for at, row in enumerate(rows)]

    # -- what is read and written -------------------------------------------------------

    def make_cache(self, rows: list[Row]) -> PoolCache:
        """Return what the model reads and writes in the pass of `rows`."""
        places: dict[Kind, Places] = {"full": self._places([(row, row.slots) for row in rows])}
        if "swa" in self._memory:
            places["swa"] = self._places([(row, self.window_of(row)) for row in rows])
        states = None
        if "mamba" in self._memory:
            slots = torch.tensor([row.state for row in rows], device=self.model.device)
            fresh = [row.start == 0 for row in rows]
            states = States(
                slots, slots.new_tensor(fresh, dtype=torch.bool) if any(fresh) else None
            )
        load = rows[0].load if len(rows) == 1 else None
        return PoolCache(
            memory=self._memory,
            layers=self._layers,
            rows=len(rows),
            places=places,
            scratch=self._scratch,
            states=states,
            load=load,
            load_timeout_s=self.load_timeout_s,
        )

    def window_of(self, row: Row) -> npt.NDArray[np.int64]:
        """Return the window slots that `row` reads: from the window of its first token on."""
        assert row.window_slots is not None
        return row.window_slots[self._window_begin(row) - row.window_start :]

    def make_masks(self, rows: list[Row]) -> Any:
        """Return which keys each token may see, in the form that the model takes."""
        full = self._mask(rows, [len(row.slots) for row in rows], None)
        if not self._named:
            return full
        named = {"full_attention": full, "linear_attention": None, "conv": None}
        if "swa" in self._memory:
            lengths = [len(self.window_of(row)) for row in rows]
            named["sliding_attention"] = self._mask(rows, lengths, self.model.window)
        return named

    def keep_states(self, rows: list[Row]) -> None:
        """Copy the states that are to be kept, to where they are kept."""
        for row in rows:
            if row.keep_state is not None and row.state is not None:
                self._memory["mamba"].copy(row.state, row.keep_state)

    def _has_arrived(self, row: Row) -> bool:
        """Return whether all that `row` reads is on the device for certain."""
        if row.load is None:
            return True
        if not row.load.done:
            return False
        try:
            for at in range(self._last + 1):
                row.load.wait_layer(at, 0)
        except (LoadFailed, CallTimeout):
            return False
        return True

    def _window_begin(self, row: Row) -> int:
        assert self.model.window is not None
        return max(row.start - self.model.window + 1, 0)

    def _places(self, rows: Sequence[tuple[Row, npt.NDArray[np.int64]]]) -> Places:
        """Return where a pool is read and written, with the slots that each row reads.

        A shorter row is filled up with its own last slot: what is masked is still multiplied with
        zero, and what others have there might not be a number.
        """
        longest = max(len(slots) for _, slots in rows)
        read = np.empty((len(rows), longest), dtype=np.int64)
        for at, (_, slots) in enumerate(rows):
            read[at, : len(slots)] = slots
            read[at, len(slots) :] = slots[-1]
        write = np.concatenate([slots[-len(row.tokens) :] for row, slots in rows])
        device = self.model.device
        return Places(
            torch.from_numpy(read.reshape(-1)).to(device), torch.from_numpy(write).to(device)
        )

    def _mask(self, rows: list[Row], lengths: list[int], window: int | None) -> torch.Tensor | None:
        device, row = self.model.device, rows[0]
        if len(row.tokens) == 1:
            # All that a single token reads it may see.
            return masks.padded(torch.tensor(lengths, device=device), max(lengths))
        if row.start == 0 and (window is None or len(row.tokens) <= window):
            # None is plainly causal, which attention has a quicker way for.
            return None
        if window is None:
            return masks.causal(row.start, len(row.tokens), device)
        first = self._window_begin(row)
        return masks.windowed(row.start, len(row.tokens), first, window, device)


def _memory_for(model: LoadedModel, cache: UnifiedRadixCache) -> dict[str, Any]:
    """Return the pools that `model` uses, or say what is wrong with those of `cache`."""
    found: dict[str, Any] = {}
    advice = "make the configuration with radixtide.serving.geometry.cache_config"
    for kind in sorted(set(model.kinds)):
        section, memory = getattr(cache.config.pools, kind), cache.memory.get(kind)
        if section is None or memory is None:
            raise ConfigError(f"pools.{kind}: no memory, and {model.name} needs it; {advice}")
        for key, wanted in pool_shape(model, kind).items():
            given = getattr(section, key)
            if given != wanted:
                raise ConfigError(
                    f"pools.{kind}.{key}: {given}, and {model.name} needs {wanted}; {advice}"
                )
        found[kind] = memory
    if model.window is not None and cache.config.window != model.window:
        raise ConfigError(
            f"window: {cache.config.window}, and {model.name} has {model.window}; {advice}"
        )
    return found
