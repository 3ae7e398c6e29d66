"""A checkpoint of Llama's or Qwen3-MoE's architecture with a byte-level BPE vocabulary as one GGUF file, for llama.cpp.

    PYTHON benchmarks/gguf_nano.py runtime/nano nano.gguf [--kind q8_0]        needs: pip install gguf

llama.cpp rotates neighbouring numbers of a Llama's head, Hugging Face's layout the first half against the second: rows
of
the query and key projections are interleaved on the way. The pre-tokenizer's regex has no place in GGUF, so texts
would be split otherwise: give llama.cpp token ids.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]

KINDS = ("f32", "bf16", "f16", "q8_0", "q4_0")
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
}
EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def convert(model: Path, out: Path, kind: str) -> None:
    """Write the model directory's weights and vocabulary to `out`; matrices in `kind`, norms in float32.

    A tied head needs no separate tensor: llama.cpp then multiplies with the embedding.
    """
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(out, "qwen3moe" if "num_experts" in config else "llama")
    add_shape(writer, config, kind)
    add_vocabulary(writer, config, json.loads((model / "tokenizer.json").read_text()))
    for name, values in stacked(tensors(model), config.get("num_experts", 0)):
        add_tensor(writer, name, values, kind) if "exps" in name else add_tensor(
            writer, name_in_gguf(name), interleaved(name, values, config), kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: Any, config: dict[str, Any], kind: str) -> None:
    rope = config["rope_parameters"]
    if rope["rope_type"] != "default":
        raise ValueError(f"rope_type {rope['rope_type']!r}: only 'default' is converted")
    writer.add_name("sgl-nano")
    writer.add_file_type(gguf.LlamaFileType[{"f32": "ALL_F32"}.get(kind, f"MOSTLY_{kind.upper()}")])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def add_vocabulary(writer: Any, config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    special = {token["id"] for token in tokenizer["added_tokens"]}
    texts = {token: text for text, token in tokenizer["model"]["vocab"].items()}
    texts |= {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in sorted(texts)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts[token] for token in sorted(texts)])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(True)


def tensors(model: Path) -> Iterator[tuple[str, Floats]]:
    """Names and float32 values of a bfloat16 or float32 checkpoint's tensors."""
    for file in sorted(model.glob("*.safetensors")):
        data = file.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:begin]).items():
            if name != "__metadata__":
                start, stop = entry["data_offsets"]
                yield name, as_float32(data[begin + start : begin + stop], entry["dtype"]).reshape(entry["shape"])


def stacked(given: Iterator[tuple[str, Floats]], experts: int) -> Iterator[tuple[str, Floats]]:
    """The matrices of a layer's experts as one tensor [experts, outputs, inputs],
    under its name in GGUF; others as they are.
    """
    parts: dict[str, dict[int, Floats]] = {}
    for name, values in given:
        if not (match := EXPERT.fullmatch(name)):
            yield name, values
            continue
        whole = f"blk.{match[1]}.ffn_{match[3]}_exps.weight"
        parts.setdefault(whole, {})[int(match[2])] = values
        if len(parts[whole]) == experts:
            found = parts.pop(whole)
            yield whole, np.stack([found[number] for number in range(experts)])


def as_float32(data: bytes, dtype: str) -> Floats:
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "F32":
        return np.frombuffer(data, np.float32)
    raise ValueError(f"tensors of {dtype} are not converted; BF16 and F32 are")


def name_in_gguf(name: str) -> str:
    place, end = name.rsplit(".", 1)
    if place in OUTSIDE:
        return f"{OUTSIDE[place]}.{end}"
    _, _, layer, part = place.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.{end}"


def interleaved(name: str, values: Floats, config: dict[str, Any]) -> Floats:
    """Query and key rows in llama.cpp's order: the pairs that rotate together side by side."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])
    if heads is None or "num_experts" in config:
        return values
    halves = values.reshape(heads, 2, len(values) // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(values.shape)


def add_tensor(writer: Any, name: str, values: Floats, kind: str) -> None:
    values = np.ascontiguousarray(values)
    if values.ndim == 1 or "ffn_gate_inp" in name:
        writer.add_tensor(name, values)
        return
    stored = gguf.GGMLQuantizationType[kind.upper()]
    writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, help="folder in Hugging Face format")
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="bf16")
    asked = parser.parse_args()
    convert(asked.model, asked.out, asked.kind)


if __name__ == "__main__":
    main()
