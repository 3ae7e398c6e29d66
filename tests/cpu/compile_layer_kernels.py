"""Compiles the layers' kernels for a GPU on a machine without one: the interpreter takes what the compiler may refuse."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from sgl.runtime.kernels import (
    activation,
    attention_latent,
    attention_store,
    choice,
    embed,
    expert_blocks,
    expert_bring,
    expert_few_bits_kernels,
    expert_kernels,
    few_bits_assembly,
    few_bits_kernels,
    few_rows_tensor_kernels,
    heads,
    join,
    logits,
    matmul,
    one_row_bits_kernels,
    one_row_kernels,
    one_row_tensor_kernels,
    quantize,
    recurrent,
    routing_kernels,
)
from sgl.runtime.kernels import adapters as adapter_kernels
from sgl.runtime.kernels.expert_few_bits import FIXED as PACKED_FIXED
from sgl.runtime.kernels.expert_few_bits import MANY as PACKED_MANY
from sgl.runtime.kernels.expert_few_bits import SINGLE as PACKED_SINGLE
from sgl.runtime.kernels.experts import FIXED, MANY, SMALL, TILES
from sgl.runtime.kernels.few_bits_packed import BYTES
from sgl.runtime.kernels.few_rows_tensor import KINDS, FewRowsTile
from sgl.runtime.kernels.one_row_launch import TensorLaunch
from sgl.runtime.models.claims_gpu import ACTIVATIONS
from sgl.runtime.step import adapter_blocks

INTEGERS = ("stride", "delta_stride", "other_stride", "table_stride", "size", "outputs")
NUMBERS = ("eps", "after_eps", "before_eps", "value_eps", "k_scale", "v_scale", "branch", "cap")
INDICES = ("positions", "slots", "token_ids", "token_rows", "last", "table")
FLOATS = ("after_weight", "after_bias", "before_bias", "norms", "biases", "scalar", "norm")

TABLE = tuple((torch.linspace(-1, 1, 16) ** 3).tolist())


def check(kernel: Any, warps: int = 4, types: dict[str, str] | None = None, stages: int = 3, **constants: Any) -> None:
    """Its arguments have the types of `types`, or those that their names have in all kernels."""
    names = [parameter.name for parameter in kernel.params]
    kinds = dict.fromkeys(INTEGERS, "i32") | dict.fromkeys(NUMBERS, "fp32") | dict.fromkeys(INDICES, "*i32") | dict.fromkeys(FLOATS, "*fp32")
    kinds |= dict.fromkeys(constants, "constexpr") | (types or {})
    signature = {name: kinds.get(name, "*bf16") for name in names}
    if kernel.is_gluon():  # what lies at multiples of 16 bytes, as all that PyTorch allocates
        aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if signature[name].startswith("*") or name.endswith("stride")}
        source = GluonASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    else:
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": stages}).asm["ptx"]
    assert ".entry" in ptx


def joins() -> None:
    usual = {"DELTA": True, "DEPENDENT": False, "BLOCK": 1024}
    for after, before, of_sum in ((1, 1, False), (0, 2, False), (2, 0, True)):
        check(
            join._join, **usual | {"DEPENDENT": of_sum}, OTHER=not of_sum, BRANCH=not of_sum, OF_SUM=of_sum, SCALAR=of_sum,
            AFTER=after, AFTER_BIAS=after == 2, BEFORE=before, BEFORE_BIAS=before == 2,
        )  # fmt: skip


def all_heads() -> None:
    sizes = {"QUERIES": 8, "KEYS": 4, "HALF": 64, "HALF_BLOCK": 64, "TILE": 16, "MOST": 448.0}
    flags = ("TURN", "NORM", "LAYER", "WHOLE", "BIAS", "AFTER", "VALUE_NORM", "FP8", "APART")
    for on in ("TURN", "NORM LAYER BIAS APART", "TURN NORM WHOLE VALUE_NORM", "TURN NORM AFTER FP8"):
        set_flags = {flag: flag in on.split() for flag in flags}
        pools = {"keys": "*fp8e4nv", "values": "*fp8e4nv"} if set_flags["FP8"] else {}
        check(heads._rotate_and_store, 8, {"table": "*bf16", "scales": "*fp32"} | pools, **sizes, **set_flags)
    check(heads._whole_scales, 4, {"scales": "*fp32"}, QUERIES=8, KEYS=4, DIM=64, BLOCK=512)


def activations() -> None:
    rows = {"SIZE": 512, "ROWS": 4, "BLOCK": 512, "VECTOR": 8, "SCALED": False, "BIASED": False, "DEPENDENT": True}
    for name in ACTIVATIONS:
        check(activation._gated, NAME=name, BLOCK=1024)
        check(activation._alone, NAME=name, BLOCK=1024)
        check(one_row_kernels.gate_up, 2, {"norm": "*bf16"}, NORMED=name == "silu", NAME=name, **rows)
    check(one_row_kernels.heads, 2, QUERIES=8, KEYS=4, HALF=64, NORMED=False, **rows)


def texts_of(form: int, words: str, kind: str, zero: int) -> dict[str, str]:
    if form == BYTES:
        return {f"TEXT{at}": few_bits_assembly.text_of_bytes(kind, torch.bfloat16, words == "*fp8e4nv") for at in range(4)}
    return {f"TEXT{at}": few_bits_assembly.text(kind, torch.bfloat16, at, zero, TABLE) for at in range(4)}


def few_bits() -> None:
    types = dict.fromkeys(("meta", "counters"), "*i32") | dict.fromkeys(("rows", "inputs", "y_stride", "first", "last"), "i32")
    types |= dict.fromkeys(("outer", "squares", "left_squares", "partial"), "*fp32")
    usual = {"ZERO": 8, "OUTER": False, "OUTPUTS": 64}
    shape = {"BIASED": False, "NORMED": False, "TILES": 1, "ADDED": False, "READY": False, "NAME": "", "ROWS": 16, "SPLIT": 2, "APART": True, "DEPENDENT": False}
    kinds = [(0, "*i16", 64, kind) for kind in ("plain", "scaled", "shifted", "zeros", "zeros, scaled")]
    kinds += [(1, "*i16", 32, "floats, scaled"), (3, "*i16", 64, "table, scaled"), (2, "*i8", 128, "scaled"), (2, "*i8", 128, "shifted"), (2, "*fp8e4nv", 128, "scaled"), (2, "*fp8e4nv", 128, "plain")]
    for form, words, group, kind in kinds:
        texts = texts_of(form, words, kind, 8)
        constants = usual | texts | {"FORM": form, "WORDS": 32, "GROUP": group, "KIND": kind}
        check(few_bits_kernels.multiply, 4, types | {"words": words}, **constants, **shape)
        check(few_bits_kernels.restore, 4, types | {"words": words}, **constants)
    check(few_bits_kernels.multiply, 4, types | {"words": words}, **constants, **shape | {"DEPENDENT": True})
    for name in ("", "silu"):
        folded = shape | {"NAME": name, "NORMED": True, "READY": not name, "DEPENDENT": True}
        check(few_bits_kernels.multiply, 4, types | {"words": "*i16"}, **constants | {"FORM": 0, "KIND": "zeros, scaled"}, **folded)


def int8_products() -> None:
    types = {"x_scale": "*fp32", "weight_scale": "*fp32", "rows": "i32", "inputs": "i32"}
    for tile in {matmul.tile_for(rows, outputs, torch.int8, (9, 0), 132) for rows in (16, 65, 128, 200, 5000) for outputs in (4096, 28672)}:
        parts = {"x": f"tensordesc<i8[{tile.rows},{tile.depth}]>", "weight": f"tensordesc<i8[{tile.outputs},{tile.depth}]>"}
        sizes = {"ROWS": tile.rows, "OUTPUTS": tile.outputs, "DEPTH": tile.depth, "GROUP": matmul.GROUP, "FLATTEN": tile.flatten}
        check(matmul.multiply, tile.warps, types | parts, stages=tile.stages, **sizes, BIAS=True, X_SCALED=True, WEIGHT_SCALED=True, WHOLE=True)
    for kept, top in (("*fp8e4nv", 448.0), ("*i8", 127.0)):
        check(quantize.quantize_each_row, 4, {"y": kept, "scales": "*fp32", "inputs": "i32"}, BLOCK=4096, TOP=top)


def recurrences() -> None:
    types = dict.fromkeys(("q", "k", "v", "decay", "beta", "states", "out"), "*fp32") | {"read": "*i64", "write": "*i64"}
    for channels, delta in ((False, True), (True, True), (False, False)):
        sizes = {"HEADS": 32, "SHARED": 2, "KEY": 128, "VALUE": 128, "KEY_BLOCK": 128, "COLUMNS": recurrent.COLUMNS}
        check(recurrent._advance, 4, types, **sizes, CHANNELS=channels, DELTA=delta)
    types |= dict.fromkeys(("x", "dt", "a", "b", "c"), "*fp32") | {"starts": "*i64"}
    for single in (False, True):
        check(recurrent._select, 4, types, CHANNELS=8192, SIZE=16, SIZE_BLOCK=16, BLOCK=32, SINGLE=single)


def latents() -> None:
    types = dict.fromkeys(("rows_ptr", "starts_ptr", "contexts_ptr", "table_ptr", "counter_ptr", "slots_ptr"), "*i32")
    types |= dict.fromkeys(("partial_ptr", "maxima_ptr", "sums_ptr"), "*fp32") | dict.fromkeys(("scale", "row_scale"), "fp32")
    types |= dict.fromkeys(("sequences", "extra", "first", "q_token", "q_head", "pool_row", "table_row", "k_token", "k_head", "v_token", "v_head", "kv_slot"), "i32")
    sizes = {"RANK": 512, "RANK_P2": 512, "TURNED": 64, "TURNED_P2": 64, "PAGE": 16, "STAGES": 2}
    for kept, number, tile in (("*bf16", "*bf16", (64, 32, 8)), ("*fp8e4nv", "*bf16", (64, 32, 8)), ("*fp32", "*fp32", (16, 16, 4))):
        own = types | {"pool_ptr": kept, "q_ptr": number, "out_ptr": number}
        usual = sizes | {"HEADS": 20, "PRECISION": "ieee" if kept == "*fp32" else "tf32", "SEQUENCES_P2": 64}
        check(attention_latent.decode_kernel, 4, own, **usual, GROUPS=2, SHORTEST=64, BLOCK_M=16, BLOCK_N=tile[1])
        check(attention_latent.extend_kernel, tile[2], own, **usual, BLOCK_M=tile[0], BLOCK_N=tile[1])
    for kept in ("*bf16", "*fp8e4nv"):
        check(attention_store.store_kernel, 4, types | {"k_pool": kept}, v_ptr=None, v_pool=None, DIM=576, WIDTH=576, WIDTH_P2=1024, MOST=448.0)


def choices() -> None:
    types = dict.fromkeys(("positions_ptr", "rows_ptr", "table_ptr", "slots_ptr", "counts_ptr"), "*i32") | {"scores_ptr": "*fp32", "shares_ptr": "*fp32"}
    types |= dict.fromkeys(("first", "most", "q_token", "table_row", "scores_row"), "i32") | {"scale": "fp32"}
    for number, keys, count in (("*bf16", 64, 64), ("*bf16", 64, 32), ("*fp32", 16, 64)):
        sizes = {"HEADS": count, "HEADS_P2": count, "DIM": 128, "DIM_P2": 128, "PAGE": 16, "SPAN": choice.SPAN, "KEYS": keys}
        check(choice.score_kernel, 4, types | {"q_ptr": number, "keys_ptr": number}, **sizes, PRECISION="ieee" if number == "*fp32" else "tf32")
    check(choice.choose_kernel, choice.WARPS, types, PAGE=16, BLOCK=choice.BLOCK)


def one_row_bits() -> None:
    rows = {"DTYPE": triton.language.bfloat16, "INPUTS": 512, "WORDS": 32, "BLOCKS": 4, "ROWS": 8, "ZERO": 8, "COMPILED": True, "DEPENDENT": True}
    types, added = {"words": "*i16", "meta": "*i32", "outer": "*fp32", "norm": "*bf16"}, {"OUTER": False, "NORMED": True, "BIASED": False}
    kinds = ("plain", "scaled", "shifted", "zeros", "zeros, scaled")
    for kind, group in [*((kind, 2**30 if kind in ("plain", "zeros") else 64) for kind in kinds), ("scaled", 32), ("scaled", 128)]:
        check(one_row_bits_kernels.linear, 1, types, **rows, **added, GROUP=group, KIND=kind, ADDED=True)
    check(one_row_bits_kernels.gate_up, 1, types, **rows, **added | {"BIASED": True}, GROUP=64, KIND="zeros, scaled", NAME="silu")
    check(one_row_bits_kernels.heads, 1, types, **rows, **added | {"OUTER": True}, GROUP=64, KIND="scaled", QUERIES=8, KEYS=4, HALF=64)


def few_rows_by_tensor_cores() -> None:
    types = {"words": "*i16", "meta": "*i32", "outer": "*fp32", "norm": "*bf16", "squares": "*fp32", "left_squares": "*fp32"}
    types |= dict.fromkeys(("rows", "stride", "y_stride"), "i32")
    ends = ({"NAME": "silu", "NORMED": True, "ADDED": False, "READY": False}, {"NAME": "", "NORMED": False, "ADDED": True, "READY": True})
    for rows, shape in ((8, (64, 2, 2, 3)), (16, (32, 4, 2, 2)), (32, (128, 1, 4, 2)), (64, (32, 2, 2, 2))):
        tile = FewRowsTile(*shape)
        sizes = {"TILE": tile.outputs, "ROWS": rows, "SPLIT": tile.split, "SIDE": tile.side, "RING": tile.ring(rows, 64), "PROGRAMS": 32}
        for kind, end in zip(KINDS, ends, strict=True):
            more = {"OUTPUTS": 2064, "INPUTS": 2064, "GROUP": 64, "ZERO": 8, "KIND": kind, "OUTER": True, "BIASED": True, "TILES": 33, "DEPENDENT": True}
            check(few_rows_tensor_kernels.multiply, tile.split * tile.side, types, **sizes, **more, **end)


def one_row_by_tensor_cores() -> None:
    types, flags = {"words": "*i16", "meta": "*i32", "outer": "*fp32", "norm": "*bf16"}, {"NORMED": True, "BIASED": True, "DEPENDENT": True}
    kinds = (("plain", 2**30), ("zeros", 2**30), ("shifted", 64), ("scaled", 128), ("zeros, scaled", 32))
    launches = cycle(product((TensorLaunch(16, 4, 3), TensorLaunch(32, 8, 2)), (96, 2560)))
    for (kind, group), (launch, inputs) in zip((*kinds, kinds[0], kinds[-1]), launches, strict=False):
        kept = {"INPUTS": inputs, "OUTPUTS": 1536, "ROWS": launch.rows, "WARPS": launch.warps, "GROUP": group, "KIND": kind, "ZERO": 8}
        kept |= flags | {"OUTER": group == 2**30}
        for kernel, half, more in (("linear", 0, {"ADDED": True}), ("gate_up", 768, {"NAME": "gelu"}), ("heads", 64, {"QUERIES": 8, "KEYS": 2, "HALF": 64})):
            programs = launch.programs(1536, half, inputs, 16)
            check(getattr(one_row_tensor_kernels, kernel), launch.warps, types, PROGRAMS=programs, **kept, **more)


def routers() -> None:
    types = {"scores": "*fp32", "correction": "*fp32", "chosen": "*i32", "weights": "*fp32", "counts": "*i64", "slots": "*i32", "count": "i32"}
    types |= dict.fromkeys(("outside", "floor", "scale", "jitter"), "fp32")
    usual = {"TOP": 8, "LANES": 8, "SIZE": 128, "KEPT": 4, "TWO": True, "COUNTED": True, "SLOTTED": True, "DEPENDENT": True}
    flags = ("MIXER", "SIGMOID", "BEST_FIRST", "CORRECTED", "NORMALISE")
    for on in ("NORMALISE", "SIGMOID CORRECTED NORMALISE", "BEST_FIRST", "BEST_FIRST SIGMOID", "MIXER"):
        set_flags = {flag: flag in on.split() for flag in flags}
        constants = {"GROUPS": 8 if set_flags["CORRECTED"] else 1} | set_flags | usual
        check(routing_kernels.choose, 1, types, **constants)
        scores = {"weight": "*fp32", "bias": "*fp32", "rows": "i32", "counters": "*i32", "norm": "*bf16"}
        check(routing_kernels.score_rows, 4, types | scores, INPUTS=2880, BLOCK=4096, EXPERTS=2, BIASED=True, NORMED=True, CHOOSING=True, **constants)
    for kept in ("*fp32", "*bf16"):
        types |= scores | {"weight": kept}
        check(routing_kernels.score_tiles, 4, types, INPUTS=2048, ROWS=16, EXPERTS=16, DEPTH=128, BIASED=True, PRECISION="tf32x3")
    check(routing_kernels.score_rows, 4, types, INPUTS=2048, BLOCK=2048, EXPERTS=4, BIASED=False, NORMED=True, CHOOSING=True, **constants)
    check(expert_blocks._sort, 4, dict.fromkeys(("chosen", "pairs", "experts", "total"), "*i32") | {"count": "i32"}, EXPERTS=128, BINS=256, ROWS=32, CHUNK=1024)


def experts() -> None:
    types = {"chosen": "*i32", "weights": "*fp32", "inner": "i32", "limit": "fp32", "switch": "*fp32", "inputs": "i32", "count": "i32"}
    types |= dict.fromkeys(("pairs", "experts", "total"), "*i32")
    cut = {"SIZE": 2048, "TOP": 8, "ROWS": 4, "BLOCK": 1024, "VECTOR": 8, "BIASED": True, "WEIGHED": True, "DEPENDENT": True}
    besides = {"SHARED": True, "SWITCHED": True, "ADDED": True}
    check(expert_kernels.gather_up, 4, types, NAME="silu", LIMITED=True, **cut)
    check(expert_kernels.gather_down, 4, types, **cut, **besides)
    check(expert_kernels.combine, 4, types, TOP=8, BLOCK=1024, WEIGHED=True, **besides)
    for tile in (*TILES.values(), MANY, FIXED, SMALL):
        shape = {"ROWS": tile.rows, "OUTPUTS": tile.outputs, "DEPTH": tile.depth, "GROUP": 8, "DESCRIBED": tile.described, "EVEN": tile.described}
        weight = {"weight": f"tensordesc<bf16[{tile.outputs},{tile.depth}]>"} if tile.described else {}
        for name in ("", "quick_gelu"):
            flags = {"TOP": 8 if name else 1, "NAME": name, "LIMITED": bool(name), "BIASED": not tile.described, "WEIGHED": bool(name) and not tile.described}
            check(expert_kernels.grouped, tile.warps, types | weight, stages=tile.stages, **shape, **flags)


def experts_in_main_memory() -> None:
    types = dict.fromkeys(("chosen", "experts", "total", "source", "room"), "*i32") | {"counter": "*i64", "count": "i32"}
    for slotted in (False, True):
        check(expert_bring._choose, 4, types, TOP=8, EXPERTS=128, BINS=256, SLOTTED=slotted, CHUNK=1024)
    check(expert_bring._bring, 8, types, WORDS=expert_bring.WORDS)
    check(expert_bring._bring, 8, types | dict.fromkeys(("source", "room"), "*i8"), WORDS=expert_bring.WORDS)


def experts_in_few_bits() -> None:
    types = dict.fromkeys(("meta", "pairs", "experts", "total"), "*i32") | {"outer": "*fp32", "limit": "fp32"}
    types |= dict.fromkeys(("count", "inputs", "words_stride", "meta_stride"), "i32")
    kinds = [(0, "*i16", 64, "zeros, scaled"), (1, "*i16", 32, "floats, scaled"), (2, "*i8", 128, "scaled"), (2, "*fp8e4nv", 128, "plain")]
    for form, words, group, kind in kinds:
        texts = texts_of(form, words, kind, 0)
        weight = texts | {"FORM": form, "WORDS": 32, "GROUP": group, "KIND": kind, "ZERO": 0, "OUTER": kind == "plain"}
        for tile, name in ((PACKED_SINGLE, "quick_gelu"), (PACKED_SINGLE, ""), (PACKED_MANY, "silu"), (PACKED_FIXED, "")):
            shape = {"ROWS": tile.rows, "OUTPUTS": tile.outputs, "APART": tile.apart, "TURN": 8, "TOP": 4 if name else 1, "SINGLE": tile is PACKED_SINGLE}
            flags = {"NAME": name, "LIMITED": bool(name), "BIASED": True, "DEPENDENT": True}
            check(expert_few_bits_kernels.grouped, tile.warps, types | {"words": words}, stages=tile.stages, **weight, **shape, **flags)


def adapters() -> None:
    types = {"h": "*fp32", "starts": "*i64", "ranks": "*i32", "scales": "*fp32", "table": "*i32", "order": "*i32", "tiles": "*i32"}
    types |= dict.fromkeys(("x_stride", "y_stride", "inputs", "outputs", "site", "sites", "most_pieces", "pieces", "blocks"), "i32")
    for rows, rank in ((adapter_blocks.FEW, 16), (adapter_blocks.FEW, 128), (adapter_blocks.MANY, 64)):
        depth = adapter_kernels.depth_for(rank)
        for grain in (1, adapter_kernels.GRAIN):
            check(adapter_kernels.shrink, 4, types, ROWS=rows, RANK=rank, DEPTH=depth, CUT=adapter_kernels.CUT, GRAIN=grain)
            for steps in (1, adapter_kernels.LONG // adapter_kernels.OUTPUTS):
                check(adapter_kernels.expand, 4, types, ROWS=rows, RANK=rank, OUTPUTS=adapter_kernels.OUTPUTS, STEPS=steps, PARTS=14, GRAIN=grain)


def main() -> None:
    adapters()
    latents()
    choices()
    recurrences()
    routers()
    experts()
    experts_in_few_bits()
    experts_in_main_memory()
    few_bits()
    int8_products()
    one_row_bits()
    one_row_by_tensor_cores()
    few_rows_by_tensor_cores()
    joins()
    all_heads()
    activations()
    for on in (False, True):
        check(embed._embed, SCALED=on, PAGE=16, BLOCK=1024, types={"scale": "fp32"})
        check(logits._adjust, CAPPED=on, BLOCK=1024, types={"scale": "fp32"})
    check(embed._pages, 1, PAGE=16)


if __name__ == "__main__":
    main()
