"""Device pools of attention state: real tensors, one row a slot and layer.

Layouts (S slots, L layers):

* ``mha`` (MHA, GQA, MQA): K and V, each a tensor per layer of shape (S, kv_heads, head_dim).
* ``mla``: one latent per layer, shape (S, 1, latent_dim): compressed KV and the rope part together
  (DeepSeek-V2, arXiv:2405.04434, section 2.1: 512 + 64).

Sliding-window attention has a pool of the same form, for its own layers and fewer tokens.

An engine writes new state into the slots it was given and reads by index; the cache itself never
touches the bytes of a device pool except to move them between tiers.
"""

from __future__ import annotations

import torch

from radixtide.configs.errors import InvalidInput, SlotError
from radixtide.configs.schema import KvGeometry

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}


class TokenToKVPool:
    """Attention state of ``size`` slots on a torch device.

    ``buffers[layer]`` is a tuple of tensors: (K, V) for ``mha``, (latent,) for ``mla``.
    """

    def __init__(self, config: KvGeometry, size: int) -> None:
        self.kind = config.kind
        self.size = size
        self.layers = config.layers
        self.dtype = DTYPES[config.dtype]
        self.device = torch.device(config.device)
        if self.kind == "mha":
            shapes = [(size, config.kv_heads, config.head_dim)] * 2
        else:
            shapes = [(size, 1, config.latent_dim)]
        self.buffers: list[tuple[torch.Tensor, ...]] = [
            tuple(torch.zeros(shape, dtype=self.dtype, device=self.device) for shape in shapes)
            for _ in range(self.layers)
        ]

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one slot over all layers."""
        return sum(
            part[0].numel() * part.element_size() for layer in self.buffers for part in layer
        )

    def parts(self) -> list[list[torch.Tensor]]:
        """Return per layer its tensors of shape (size, *row): the memory itself, not copies."""
        return [list(layer) for layer in self.buffers]

    def write(self, layer: int, slots: torch.Tensor, *parts: torch.Tensor) -> None:
        """Write rows of state: one tensor of shape (len(slots), heads, dim) per buffer of a layer.

        Raises:
            InvalidInput: number of parts, dtype or shape do not fit; nothing is written.
            SlotError: slots are no integers, or out of range (looked at where they are on the CPU).
        """
        buffers = self._layer(layer)
        self._check_slots(slots)
        if len(parts) != len(buffers):
            raise InvalidInput(
                f"layer {layer} of a {self.kind} pool takes {len(buffers)} tensor(s), "
                f"not {len(parts)}"
            )
        for buffer, part in zip(buffers, parts, strict=True):
            wanted = (len(slots), *buffer.shape[1:])
            if tuple(part.shape) != wanted or part.dtype != buffer.dtype:
                raise InvalidInput(
                    f"state of layer {layer} must be {wanted} {buffer.dtype}, "
                    f"not {tuple(part.shape)} {part.dtype}"
                )
        index = slots.to(self.device)
        for buffer, part in zip(buffers, parts, strict=True):
            buffer[index] = part.to(self.device)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return copies of the rows of `slots`, one tensor per buffer of the layer."""
        self._check_slots(slots)
        index = slots.to(self.device)
        return tuple(buffer[index] for buffer in self._layer(layer))

    def _check_slots(self, slots: torch.Tensor) -> None:
        """Refuse slots that are not in the pool; those on an accelerator are not waited for."""
        if slots.dtype not in (torch.int64, torch.int32) or slots.ndim != 1:
            raise SlotError(
                f"slots must be a tensor of integers of one dimension, not {slots.dtype} of shape "
                f"{tuple(slots.shape)}"
            )
        if slots.is_cpu and len(slots):
            low, high = int(slots.min()), int(slots.max())
            if low < 0 or high >= self.size:
                wrong = low if low < 0 else high
                raise SlotError(f"slot {wrong} is not in [0, {self.size})")

    def _layer(self, layer: int) -> tuple[torch.Tensor, ...]:
        if not 0 <= layer < self.layers:
            raise InvalidInput(f"layer {layer} is not in [0, {self.layers})")
        return self.buffers[layer]
