"""Device pool of recurrent states: real tensors, one row a state and layer.

A layer with a recurrence (Mamba, linear attention) keeps, whatever the length of the sequence, one
state of two tensors: the last inputs of its short convolution (**conv**) and the state of the
recurrence itself (**ssm**). A state is valid at exactly one length, and a whole one is a row in
each layer. Layouts (S states): conv ``(S, *conv_shape)`` and ssm ``(S, *ssm_shape)`` a layer.

An engine writes the states of its requests through the views; the cache itself copies whole states
(for a request that goes on from a state that is kept) and moves them between tiers.
"""

from __future__ import annotations

import torch

from radixtide.configs.errors import InvalidInput, SlotError
from radixtide.configs.schema import MambaPoolConfig
from radixtide.tiers.kv_pool import DTYPES


class StatePool:
    """Recurrent state of ``size`` states on a torch device.

    ``conv[layer]`` and ``ssm[layer]`` are the tensors themselves.
    """

    def __init__(self, config: MambaPoolConfig, size: int) -> None:
        self.size = size
        self.layers = config.layers
        self.device = torch.device(config.device)
        self.conv = self._made(config.conv_shape, config.conv_dtype)
        self.ssm = self._made(config.ssm_shape, config.ssm_dtype)

    def _made(self, shape: tuple[int, ...], dtype: str) -> list[torch.Tensor]:
        return [
            torch.zeros((self.size, *shape), dtype=DTYPES[dtype], device=self.device)
            for _ in range(self.layers)
        ]

    @property
    def bytes_per_state(self) -> int:
        """Bytes of one state over all layers."""
        parts = (*self.conv, *self.ssm)
        return sum(part[0].numel() * part.element_size() for part in parts)

    def parts(self) -> list[list[torch.Tensor]]:
        """Return per layer conv and ssm, each (size, *shape): the memory itself, not copies."""
        return [[conv, ssm] for conv, ssm in zip(self.conv, self.ssm, strict=True)]

    def views(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return conv and ssm of a layer, all states of it: the memory itself, to read and write.

        Raises:
            InvalidInput: there is no such layer.
        """
        if not 0 <= layer < self.layers:
            raise InvalidInput(f"layer {layer} is not in [0, {self.layers})")
        return self.conv[layer], self.ssm[layer]

    def copy(self, source: int, target: int) -> None:
        """Copy the state in slot `source` to slot `target`, in all layers.

        On an accelerator the copies are only put on its current stream, behind the writes that made
        the source there.

        Raises:
            SlotError: a slot is not in the pool; nothing is copied.
        """
        for slot in (source, target):
            if not 0 <= slot < self.size:
                raise SlotError(f"state slot {slot} is not in [0, {self.size})")
        if source == target:
            return
        for part in (*self.conv, *self.ssm):
            part[target].copy_(part[source])
