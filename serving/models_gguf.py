"""Models in a ``.gguf`` file.

Files of a Llama, as the default model's is, are read here with the parts that Transformers has for
it, in seconds: its general way with this architecture takes most of a minute for a small model.
Other architectures go that way. Importing this module imports Transformers, which takes seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.integrations.gguf.dequant import dequantize
from transformers.integrations.gguf.reader import (
    GgufHeader,
    load_gguf_state_dict,
    read_gguf_metadata,
)

from radixtide.configs.errors import how_to_install
from radixtide.serving.errors import ModelUnusable

UNREADABLE: Final = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    RuntimeError,
    SafetensorError,
)
"""What Transformers raises of files that are damaged, missing or of another kind."""

_IN_LAYERS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_AROUND: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def load_gguf(path: Path, dtype: torch.dtype) -> tuple[Any, Any, str]:
    """Return model, tokenizer and digest of the GGUF file at `path`.

    Raises:
        ModelUnusable: the file can not be read, or is of a kind that Transformers does not know.
    """
    try:
        metadata, names = read_gguf_metadata(str(path))
        place: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
        if _is_plain_llama(metadata, names):
            model = _load_llama(path, metadata, names, dtype)
            # Its class is known, so nobody has to look into the file for it once more.
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent, **place)
        else:
            model = _load_other(path, place, dtype)
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **place)
    except ImportError as error:
        raise ModelUnusable(
            f"{path}: reading GGUF needs more packages ({error}); {how_to_install('serve')}"
        ) from None
    except UNREADABLE as error:
        raise ModelUnusable(f"{path}: Transformers can not load this model: {error}") from error
    return model, tokenizer, _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_other(path: Path, place: dict[str, Any], dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=dtype, quantization_config=GgufConfig(dequantize=True), **place
    )


def _is_plain_llama(metadata: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    """Return whether all of a file is read here: no experts, positions that are not stretched."""
    return (
        metadata["general.architecture"] == "llama"
        and metadata.get("llama.rope.scaling.type", "none") == "none"
        and all(_llama_name(name) is not None for name in names)
    )


def _load_llama(
    path: Path, metadata: Mapping[str, Any], names: tuple[str, ...], dtype: torch.dtype
) -> Any:
    config = _llama_config(metadata, names)
    weights = {
        str(_llama_name(name)): part.to(dtype)
        for name, part in _llama_weights(path, config).items()
    }
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    # What is computed from the config alone has no weights in the file.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    left = [name for name in missing if name != "lm_head.weight" or not config.tie_word_embeddings]
    if left or unexpected:
        raise ValueError(f"it has not the weights of a Llama: {[*left, *unexpected][0]}")
    return model


def _llama_config(metadata: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    def key(name: str) -> Any:
        return metadata[f"llama.{name}"]

    def token(name: str) -> int | None:
        return metadata.get(f"tokenizer.ggml.{name}_token_id")

    heads = key("attention.head_count")
    dimensions = metadata.get("llama.rope.dimension_count", key("embedding_length") // heads)
    return LlamaConfig(
        vocab_size=metadata.get("llama.vocab_size", metadata["tokenizer.ggml.tokens"]),
        hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"),
        num_hidden_layers=key("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=metadata.get("llama.attention.head_count_kv", heads),
        head_dim=metadata.get("llama.attention.key_length", dimensions),
        max_position_embeddings=key("context_length"),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": metadata.get("llama.rope.freq_base", 10_000.0),
        },
        tie_word_embeddings="output.weight" not in names,
        bos_token_id=token("bos"),
        eos_token_id=token("eos"),
        pad_token_id=token("padding"),
    )


def _llama_weights(path: Path, config: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of the file by their name there, float32, as Transformers has them."""
    header = GgufHeader.from_file(str(path))
    found = {}
    for info, (name, lazy) in zip(
        header.tensors, load_gguf_state_dict(header).items(), strict=True
    ):
        part = lazy[...]
        if part.dtype == torch.uint8:
            part = dequantize(part.flatten(), info.ggml_type).reshape(info.shape)
        if name.endswith("attn_q.weight"):
            part = _in_halves(part, config.num_attention_heads)
        elif name.endswith("attn_k.weight"):
            part = _in_halves(part, config.num_key_value_heads)
        found[name] = part.float()
    return found


def _in_halves(part: torch.Tensor, heads: int) -> torch.Tensor:
    """Put the rows of each head as Transformers rotates them: first all first ones of the pairs.

    In the file the two that are rotated together follow one another.
    """
    pairs = part.view(heads, -1, 2, *part.shape[1:])
    return pairs.transpose(1, 2).reshape(part.shape)


def _llama_name(name: str) -> str | None:
    """Return what Transformers calls the tensor `name`; None: it is none of a plain Llama."""
    if name in _AROUND:
        return _AROUND[name]
    block, number, part, kind = (name.split(".") + [""] * 4)[:4]
    if block != "blk" or part not in _IN_LAYERS:
        return None
    return f"model.layers.{number}.{_IN_LAYERS[part]}.{kind}"
