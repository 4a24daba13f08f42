"""The cache's pools as Transformers' models see them: a cache object whose state lives in slots.

A model calls :meth:`PoolCache.update` in each of its attention layers with the new keys and values,
and gets all that it attends to; in a layer with a recurrence it asks for the state and gives it
back. Here each of these is one write and one gather by index, whatever number of rows a pass has.

The object does what the models' layers ask of a cache, and is none of Transformers' own: those keep
their tensors themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from radixtide.actors.tier_handles import LoadBack
from radixtide.serving.models import Kind
from radixtide.tiers.kv_pool import TokenToKVPool
from radixtide.tiers.state_pool import StatePool


@dataclass(frozen=True, slots=True)
class Places:
    """Where one pool is read and written in a pass of B rows with T tokens each.

    ``read``: int64, shape (B * L,): the slots of all that is attended to, row by row.
    ``write``: int64, shape (B * T,): those of the new tokens; they are among the former.
    """

    read: torch.Tensor
    write: torch.Tensor


@dataclass(frozen=True, slots=True)
class States:
    """The recurrent states of a pass of B rows.

    ``slots``: int64, shape (B,). ``fresh``: bool, shape (B,): rows whose state begins at zero; what
    lies in their slots is stale. None: no row's does.
    """

    slots: torch.Tensor
    fresh: torch.Tensor | None


class Scratch:
    """Memory for what a layer reads, used again by the next: the layer before is through with it.

    Taking tens of megabytes from the system anew in each layer would cost more than filling them.
    It grows to what the largest pass needs, and stays.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def take(self, number: int, like: torch.Tensor, rows: int) -> torch.Tensor:
        """Return part `number`, of `rows` rows like those of `like`; what is in it is stale."""
        wanted = rows * like[0].numel()
        part = self._parts.get((number, like.dtype))
        if part is None or part.numel() < wanted:
            part = self._parts[number, like.dtype] = like.new_empty(wanted)
        return part[:wanted].view(rows, *like.shape[1:])


@dataclass(slots=True)
class PoolCache:
    """What one forward pass reads and writes in the pools.

    ``memory``: the pools by name. ``layers``: for each layer of the model its pool and its place
    there. ``places``: of the pools of keys and values. ``scratch``: for what is read. ``load``: one
    that may still bring some of that; each layer waits for its part, up to ``load_timeout_s``.
    """

    memory: dict[str, Any]
    layers: tuple[tuple[Kind, int], ...]
    rows: int
    places: dict[Kind, Places]
    scratch: Scratch
    states: States | None = None
    load: LoadBack | None = None
    load_timeout_s: float | None = None
    _arrived: set[int] = field(default_factory=set)

    # -- what attention layers ask ----------------------------------------------------

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values, (B, heads, T, dim); return all, (B, heads, L, dim).

        Raises:
            LoadFailed: what is read was to be loaded, and did not come.
        """
        kind, at = self.layers[layer]
        pool: TokenToKVPool = self.memory[kind]
        places = self.places[kind]
        self.wait(at)
        for buffer, new in zip(pool.buffers[at], (keys, values), strict=True):
            self.write(buffer, places, new)
        first, second = pool.buffers[at]
        return self.read(first, places, 0), self.read(second, places, 1)

    def get_query_offset(self, layer: int = 0) -> int:
        """Return the position of a pass's first token: 0.

        A model asks only where it is given no mask, which is where a text begins.
        """
        return 0

    def get_mask_sizes(self, count: int, layer: int = 0) -> tuple[int, int]:
        """Return how many keys `count` tokens that begin a text read, and the first position."""
        return count, 0

    def write(self, buffer: torch.Tensor, places: Places, new: torch.Tensor) -> None:
        """Write `new`, (B, heads, T, dim), to the slots of the new tokens."""
        buffer.index_copy_(0, places.write, new.transpose(1, 2).flatten(0, 1))

    def read(self, buffer: torch.Tensor, places: Places, part: int) -> torch.Tensor:
        """Return the rows of all slots that are attended to, (B, heads, L, dim).

        They lie in `part` of the scratch memory, until the next layer reads.
        """
        found = self.scratch.take(part, buffer, len(places.read))
        torch.index_select(buffer, 0, places.read, out=found)
        return found.view(self.rows, -1, *buffer.shape[1:]).transpose(1, 2)

    # -- what layers with a recurrence ask --------------------------------------------

    def get_conv_state(self, layer: int, state_idx: int = 0) -> torch.Tensor:
        """Return the last inputs of the convolution of each row, (B, channels, width)."""
        at, pool = self._state_layer(layer)
        return self.take_state(pool.conv[at])

    def update_conv_state(
        self, new: torch.Tensor, layer: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """Put `new` inputs, (B, channels, T), behind the last ones; keep the last of both.

        Returns last and new ones together, (B, channels, width + T).
        """
        at, pool = self._state_layer(layer)
        conv = pool.conv[at]
        both = torch.cat((self.take_state(conv), new.to(conv.dtype)), dim=-1)
        self.put_state(conv, both[..., -conv.shape[-1] :])
        return both

    def get_recurrent_state(self, layer: int, state_idx: int = 0) -> torch.Tensor:
        """Return the state of the recurrence of each row, (B, *ssm_shape)."""
        at, pool = self._state_layer(layer)
        return self.take_state(pool.ssm[at])

    def update_recurrent_state(
        self, new: torch.Tensor, layer: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """Keep the state of the recurrence after this pass, (B, *ssm_shape), and return it."""
        at, pool = self._state_layer(layer)
        self.put_state(pool.ssm[at], new)
        return new

    def is_recording_past(self, layer: int) -> bool:
        """Answer that a convolution's inputs go through :meth:`update_conv_state` at any length.

        Otherwise a pass of single tokens would write into what :meth:`get_conv_state` returned,
        which is a copy.
        """
        return True

    def take_state(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the states of the rows, (B, ...); zeros where a state begins."""
        assert self.states is not None
        found = buffer.index_select(0, self.states.slots)
        if self.states.fresh is not None:
            found[self.states.fresh] = 0
        return found

    def put_state(self, buffer: torch.Tensor, new: torch.Tensor) -> None:
        """Write the states of the rows, (B, ...)."""
        assert self.states is not None
        buffer.index_copy_(0, self.states.slots, new.to(buffer.dtype))

    def _state_layer(self, layer: int) -> tuple[int, StatePool]:
        kind, at = self.layers[layer]
        self.wait(at)
        return at, self.memory[kind]

    # -- loads ------------------------------------------------------------------------

    def wait(self, at: int) -> None:
        """Wait until the layer at place `at` of every pool may be read.

        Raises:
            LoadFailed: a load failed. CallTimeout: it takes longer than ``load_timeout_s``.
        """
        if self.load is not None and at not in self._arrived:
            self.load.wait_layer(at, self.load_timeout_s)
            self._arrived.add(at)
