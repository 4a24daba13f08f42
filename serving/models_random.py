"""Small models with random weights, one a kind of layer: for tests, and to try the server at once.

Their weights are drawn widely enough that each token of a context shows in the logits, so that one
wrong slot is seen. The full layers are neither first nor last: what any pool holds reaches the
logits through the others. Importing this module imports Transformers, which takes seconds.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import transformers

from radixtide.serving.errors import ModelUnusable
from radixtide.serving.tokens import BYTE_VOCABULARY, END_OF_TEXT, END_OF_TURN

RANDOM: Final = ("llama", "gemma3", "qwen3_next", "lfm2")
"""Names of the random models."""

_SHAPE: Final[dict[str, Any]] = {
    "vocab_size": BYTE_VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": [END_OF_TEXT, END_OF_TURN],
    "pad_token_id": None,
}


def random_model(name: str, seed: int, dtype: torch.dtype) -> Any:
    """Return the random model `name`, its weights drawn from `seed`; torch's own seed is kept.

    Raises:
        ModelUnusable: there is no random model of that name.
    """
    config = _config(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build: Any = transformers.AutoModelForCausalLM.from_config
        model = build(config, dtype=torch.float32)
    return model.to(dtype)


def _config(name: str) -> Any:
    if name == "llama":
        return transformers.LlamaConfig(**_SHAPE, head_dim=16)
    if name == "gemma3":
        order = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
        return transformers.Gemma3TextConfig(
            **_SHAPE, head_dim=16, query_pre_attn_scalar=16, sliding_window=24, layer_types=order
        )
    if name == "qwen3_next":
        order = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
        return transformers.Qwen3NextConfig(
            **_SHAPE,
            head_dim=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_conv_kernel_dim=4,
            num_experts=0,
            layer_types=order,
        )
    if name == "lfm2":
        order = ["conv", "full_attention", "conv", "conv"]
        return transformers.Lfm2Config(**_SHAPE, conv_L_cache=3, layer_types=order)
    raise ModelUnusable(
        f"random:{name}: no random model has that name; known: "
        + ", ".join(f"random:{one}" for one in RANDOM)
    )
