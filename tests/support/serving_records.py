"""What serving said, beside what the reference says: logits, tokens, and bytes in the pools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from radixtide import MatchPrefixParams, Request, UnifiedRadixCache
from radixtide.serving.rows import Outcome, Row
from radixtide.tree.key import RadixKey
from support.serving_reference import Reference, Spread, Verdict, largest

POOLS: Final = {"sliding_attention": "swa", "linear_attention": "mamba", "conv": "mamba"}
"""The pool of a layer that is not of full attention, by the name that transformers gives it."""

SHOWN: Final = 5


class Records:
    """What a runner was asked and what it answered, by request and position.

    ``said``: per request the logits after each position, as often as they were computed.
    ``fed``: per request the token at each position that was computed. ``lost``: rows that were.
    ``rows``: how many, ``tokens``: of how many tokens, ``widest``: in one pass at most.
    """

    def __init__(self) -> None:
        self.said: dict[str, list[tuple[int, torch.Tensor]]] = {}
        self.fed: dict[str, dict[int, int]] = {}
        self.lost: list[str] = []
        self.rows = 0
        self.tokens = 0
        self.widest = 0

    def note(self, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> None:
        """Note one pass."""
        self.widest = max(self.widest, len(rows))
        for row, outcome in zip(rows, outcomes, strict=True):
            self.rows += 1
            self.tokens += len(row.tokens)
            if outcome.lost:
                self.lost.append(row.rid)
                continue
            fed = self.fed.setdefault(row.rid, {})
            for at, token in enumerate(row.tokens.tolist(), row.start):
                fed[at] = token
            if outcome.logits is not None:
                said = self.said.setdefault(row.rid, [])
                said.append((len(row.slots) - 1, outcome.logits.detach().float().cpu().clone()))

    def text(self, rid: str, prompt: Sequence[int]) -> list[int]:
        """Return the prompt and what was computed behind it."""
        tokens = [int(token) for token in prompt]
        fed = self.fed.get(rid, {})
        while len(tokens) in fed:
            tokens.append(fed[len(tokens)])
        return tokens


def judge(
    reference: Reference,
    spread: Spread,
    records: Records,
    prompts: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
) -> Verdict:
    """Compare all that was said with plain passes over the same tokens.

    `prompts`: of every request. `outputs`: what its client got, greedily chosen; of one that was
    aborted, what it got until then.
    """
    verdict = Verdict()
    texts = {rid: records.text(rid, prompt) for rid, prompt in prompts.items()}
    # The longest first: many others are beginnings of them.
    for rid, text in sorted(texts.items(), key=lambda one: -len(one[1])):
        prompt = prompts[rid]
        output = [int(token) for token in outputs.get(rid, ())]
        if len(text) < len(prompt) + len(output) - 1:
            verdict.wrong.append(f"{rid}: not all of its tokens were computed")
            continue
        fed = [records.fed.get(rid, {}).get(at, token) for at, token in enumerate(text)]
        told = [*text[: len(prompt)], *output]
        if fed[: len(prompt)] != text[: len(prompt)] or (text + output[-1:])[: len(told)] != told:
            verdict.wrong.append(f"{rid}: it was computed of other tokens than its client's")
            continue
        reply = reference.logits(text)
        _judge_logits(verdict, spread, rid, records.said.get(rid, []), reply)
        heard = {at for at, _ in records.said.get(rid, [])}
        for at, token in enumerate(output, len(prompt) - 1):
            if at not in heard:
                verdict.wrong.append(f"{rid}: a token at {at + 1} that no pass gave logits for")
            _judge_token(verdict, spread, rid, at, token, reply[at])
    return verdict


def _judge_logits(
    verdict: Verdict,
    spread: Spread,
    rid: str,
    said: Iterable[tuple[int, torch.Tensor]],
    reply: torch.Tensor,
) -> None:
    for at, logits in said:
        far = largest(logits, reply[at])
        verdict.compared += 1
        verdict.worst = max(verdict.worst, far)
        if far > spread.logits_max:
            verdict.wrong.append(f"{rid}: logits after position {at} are {far:.2e} off")


def _judge_token(
    verdict: Verdict, spread: Spread, rid: str, at: int, token: int, reply: torch.Tensor
) -> None:
    behind = (reply.max() - reply[token]).item()
    if behind > 2 * spread.logits_max:
        best = int(reply.argmax())
        verdict.wrong.append(f"{rid}: token {token} at {at + 1}, where it is {best}")
    elif behind > 0:
        verdict.undecided += 1


# -- at rest ---------------------------------------------------------------------------------------


def layers_of(model: Any) -> dict[str, list[int]]:
    """Return the layers of a model whose state each pool has, in order, by the pool's name."""
    config = model.config
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    pools: dict[str, list[int]] = {}
    for layer, kind in enumerate(kinds):
        pools.setdefault(POOLS.get(kind, "full"), []).append(layer)
    return pools


async def at_rest(
    cache: UnifiedRadixCache,
    reference: Reference,
    spread: Spread,
    tokens: Sequence[int],
    cache_salt: str | None = None,
) -> Verdict:
    """Compare what the pools have of `tokens`, on the device, with the state of a plain pass.

    ``compared``: tokens whose slots were looked at; a cached state counts as one.
    """
    verdict = Verdict()
    req = Request("looks at it", list(tokens), cache_salt=cache_salt)
    found = await cache.match_prefix(
        MatchPrefixParams(
            key=RadixKey(list(tokens), None, cache_salt),
            req=req,
            lock=True,
            cow_mamba="mamba" in cache.memory,
        )
    )
    try:
        length = len(found.device_indices)
        if length:
            await _look(cache, reference, spread, tokens, found.device_indices, req, verdict)
    finally:
        await cache.abort_req(req)
    return verdict


async def _look(
    cache: UnifiedRadixCache,
    reference: Reference,
    spread: Spread,
    tokens: Sequence[int],
    slots: torch.Tensor,
    req: Request,
    verdict: Verdict,
) -> None:
    length = len(slots)
    kept = reference.kept(tokens[:length])

    def compare(what: str, mine: torch.Tensor, theirs: torch.Tensor) -> None:
        far = largest(mine.float().cpu(), theirs)
        verdict.worst = max(verdict.worst, far)
        if far > spread.state_max:
            verdict.wrong.append(f"{what} of {length} tokens is {far:.2e} off")

    for pool, layers in layers_of(reference.model).items():
        memory: Any = cache.memory[pool]
        if pool == "mamba":
            assert req.mamba_pool_idx is not None, "a match without a copy of its state"
            verdict.compared += 1
            for at, layer in enumerate(layers):
                conv, ssm = (one[req.mamba_pool_idx] for one in memory.views(at))
                width = conv.shape[-1]
                compare(f"conv of layer {layer}", conv, kept.conv[layer][..., -width:])
                if layer in kept.ssm:
                    compare(f"ssm of layer {layer}", ssm, kept.ssm[layer])
            continue
        own = slots if pool == "full" else await cache.component_slots(pool, slots)
        there = torch.nonzero(own >= 0)[:, 0]
        verdict.compared += len(there)
        if not len(there):
            verdict.wrong.append(f"nothing of {length} tokens in {pool}")
        for at, layer in enumerate(layers):
            for name, mine, theirs in zip(
                "KV", memory.read(at, own[there]), kept.attention[layer], strict=True
            ):
                compare(f"{name} of layer {layer}", mine, theirs[there])


__all__ = ("Records", "at_rest", "judge", "layers_of")
