"""Marks in the bytes of a pool that say which token of which prefix a slot's state belongs to."""

from __future__ import annotations

import torch

from radixtide.tiers.kv_pool import TokenToKVPool
from support.model import Namespace, Tokens


class Stamps:
    """Writes and checks rows that are a function of namespace, position and all tokens up to it.

    A float32 row holds whole numbers below 2**24 exactly, so rows are compared exactly.
    """

    def __init__(self, pool: TokenToKVPool, bigram: bool) -> None:
        self.pool = pool
        # The state of a pair depends on both of its tokens.
        self.reach = 2 if bigram else 1

    def rows(
        self, namespace: Namespace, tokens: Tokens, begin: int, count: int
    ) -> list[list[torch.Tensor]]:
        """Return, by layer and buffer, the rows of units ``[begin, begin + count)``."""
        marks = [
            (hash((namespace, tokens[: at + self.reach])) % 2**24, at, tokens[at])
            for at in range(begin, begin + count)
        ]
        base = torch.tensor(marks, dtype=torch.float32).reshape(count, 3)
        layers = []
        for layer, buffers in enumerate(self.pool.buffers):
            parts = []
            for which, buffer in enumerate(buffers):
                heads, dim = buffer.shape[1:]
                row = torch.zeros((count, heads, dim), dtype=torch.float32)
                row[:, :, :3] = base[:, None, :]
                row[:, :, 1] += 1000 * layer + 100 * which
                parts.append(row)
            layers.append(parts)
        return layers

    def write(self, slots: list[int], namespace: Namespace, tokens: Tokens, begin: int) -> None:
        """Write the rows of the units from `begin` on into `slots`, as far as there are both."""
        count = max(min(len(slots), len(tokens) - begin), 0)
        index = torch.tensor(slots[:count], dtype=torch.int64)
        for layer, parts in enumerate(self.rows(namespace, tokens, begin, count)):
            self.pool.write(layer, index, *parts)

    def verify(self, slots: torch.Tensor, namespace: Namespace, tokens: Tokens) -> None:
        """Assert that `slots` hold the rows of the first units of `tokens`."""
        for layer, parts in enumerate(self.rows(namespace, tokens, 0, len(slots))):
            for got, want in zip(self.pool.read(layer, slots), parts, strict=True):
                assert torch.equal(got, want), (namespace, tokens, slots.tolist())
