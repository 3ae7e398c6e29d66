"""Two files of random weights in the shape of Qwen2 0.5B, for `start.py`: GGUF in Q4_K_M, and safetensors.

    PYTHON benchmarks/start_models.py VOCABULARY.gguf OUT       needs: pip install gguf llama-cpp-python torch

VOCABULARY is one that llama.cpp publishes, `ggml-vocab-qwen2.gguf` of its source archive: 151,936 tokens. Writes
OUT/q4_k_m.gguf (about 0.4 GB) and OUT/f16.gguf, from which llama.cpp's own quantizer makes it.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import llama_cpp.llama_cpp as api
import numpy as np

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 896, 4864, 24, 14, 2, 64
Array = np.ndarray[Any, np.dtype[Any]]


def write(vocabulary: Path, out: Path) -> None:
    """Write the model in float16, with the keys of the vocabulary."""
    writer = gguf.GGUFWriter(out, "qwen2")
    size = add_vocabulary(writer, gguf.GGUFReader(vocabulary))
    writer.add_name("random weights, 0.5b")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_block_count(LAYERS)
    writer.add_context_length(32_768)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    for name, values in tensors(size):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: gguf.GGUFWriter, reader: gguf.GGUFReader) -> int:
    """Copies the keys of the tokenizer; returns how many tokens it has."""
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def tensors(size: int) -> Iterator[tuple[str, Array]]:
    draw = np.random.default_rng(0)

    def matrix(*shape: int) -> Array:
        return (0.02 * draw.standard_normal(shape, np.float32)).astype(np.float16)

    yield "token_embd.weight", matrix(size, HIDDEN)
    yield "output_norm.weight", np.ones(HIDDEN, np.float32)
    for layer in range(LAYERS):
        head = f"blk.{layer}."
        for name, rows in (("q", HEADS * HEAD), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)):
            yield f"{head}attn_{name}.weight", matrix(rows, HIDDEN)
            yield f"{head}attn_{name}.bias", np.zeros(rows, np.float32)
        yield f"{head}attn_output.weight", matrix(HIDDEN, HEADS * HEAD)
        yield f"{head}ffn_gate.weight", matrix(INNER, HIDDEN)
        yield f"{head}ffn_up.weight", matrix(INNER, HIDDEN)
        yield f"{head}ffn_down.weight", matrix(HIDDEN, INNER)
        yield f"{head}attn_norm.weight", np.ones(HIDDEN, np.float32)
        yield f"{head}ffn_norm.weight", np.ones(HIDDEN, np.float32)


def quantize(source: Path, out: Path) -> None:
    params = api.llama_model_quantize_default_params()
    params.ftype = api.LLAMA_FTYPE_MOSTLY_Q4_K_M
    if api.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp could not quantize {source}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    write(args.vocabulary, args.out / "f16.gguf")
    quantize(args.out / "f16.gguf", args.out / "q4_k_m.gguf")
    print(f"{args.out / 'q4_k_m.gguf'}: {(args.out / 'q4_k_m.gguf').stat().st_size / 1e6:.0f} MB")
