"""Compiles the layers' kernels for a GPU on a machine without one: the interpreter takes what the compiler may refuse.

`python compile_layer_kernels.py 4` takes four forms of each kernel that has more, spread evenly; without a number all
of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from sgl.runtime.kernels import (
    activation_kernels,
    batch_invariant_matmul,
    embed_tokens,
    logit_softcap,
    residual_norm,
    rms_norm,
)
from sgl.runtime.kernels.adapters import lora_fused_gemm
from sgl.runtime.kernels.adapters import lora_sgmv as adapter_kernels
from sgl.runtime.kernels.attention import (
    attention_decode,
    attention_latent,
    kv_cache_write,
    latent_norm_rope_store,
    qk_norm_rope_store,
    topk_select,
)
from sgl.runtime.kernels.comm import all_reduce_kernels, gather_broadcast, gather_broadcast_kernels, gpu_p2p
from sgl.runtime.kernels.experts import (
    expert_align_blocks,
    expert_fetch,
    expert_gemm_kernels,
    expert_gemv_kernels,
    expert_replica_select,
    expert_routing_kernels,
    quantized_experts_kernels,
)
from sgl.runtime.kernels.experts.fused_moe import FIXED, MANY, NARROW, SECOND, SMALL, TILES
from sgl.runtime.kernels.experts.quantized_experts import FIXED as PACKED_FIXED
from sgl.runtime.kernels.experts.quantized_experts import MANY as PACKED_MANY
from sgl.runtime.kernels.experts.quantized_experts import SINGLE as PACKED_SINGLE
from sgl.runtime.kernels.experts.quantized_experts import TILES as PACKED_TILES
from sgl.runtime.kernels.gemv import (
    gemv_all_reduce,
    gemv_conv,
    gemv_kernels,
    gemv_lora,
    gemv_qk_norm,
    gemv_tensor_core_kernels,
)
from sgl.runtime.kernels.gemv.gemv_launch import GemvCut, TensorCoreGemvLaunch, best_launch
from sgl.runtime.kernels.packed.packed_weight import BYTES, NIBBLES, PackedFormat, format_of
from sgl.runtime.kernels.packed.packed_weight import FLOATS as FLOATS_FORM
from sgl.runtime.kernels.packed.packed_weight import TABLE as TABLE_FORM
from sgl.runtime.kernels.quantized import (
    quantize_activations,
    quantized_gemm_kernels,
    quantized_weight_kernels,
    skinny_gemm_kernels,
    split_k_gemm_kernels,
    wgmma_gemm_kernels,
)
from sgl.runtime.kernels.quantized.gemm_epilogue import Epilogue
from sgl.runtime.kernels.quantized.quantized_gemm import QuantizedGemmTile
from sgl.runtime.kernels.quantized.skinny_gemm import KINDS, SkinnyGemmTile
from sgl.runtime.kernels.quantized.split_k_gemm import HeadSizes, SplitKTile
from sgl.runtime.kernels.quantized.wgmma_gemm import WgmmaTile
from sgl.runtime.kernels.recurrent import (
    causal_conv,
    chunked_kda,
    chunked_linear_attention,
    linear_attention_scan,
    output_gates,
    recurrent_scan,
)
from sgl.runtime.models.gpu.gpu_support import ACTIVATIONS
from sgl.runtime.step import adapter_blocks

SHARED = 227 * 1024  # bytes that a program has on Hopper
INTEGERS = ("stride", "delta_stride", "other_stride", "table_stride", "size", "outputs")
NUMBERS = ("eps", "after_eps", "before_eps", "value_eps", "k_scale", "v_scale", "branch", "cap")
INDICES = ("positions", "slots", "token_ids", "token_rows", "last", "table", "window_slots", "window_table")
FLOATS = ("after_weight", "after_bias", "before_bias", "norms", "biases", "scalar", "norm")

TABLE = tuple((torch.linspace(-1, 1, 16) ** 3).tolist())


Form = tuple[Any, dict[str, Any]]  # what `triton.compile` takes
FORMS: dict[Any, list[Form]] = {}  # by kernel


def check(kernel: Any, warps: int = 4, types: dict[str, str] | None = None, stages: int = 3, **constants: Any) -> None:
    """A form to be compiled. Its arguments have the types of `types`, or those that their names have in all kernels."""
    names = [parameter.name for parameter in kernel.params]
    constants = {
        one.name: one.default for one in kernel.params if one.has_default and one.name not in (types or {})
    } | constants
    kinds = (
        dict.fromkeys(INTEGERS, "i32")
        | dict.fromkeys(NUMBERS, "fp32")
        | dict.fromkeys(INDICES, "*i32")
        | dict.fromkeys(FLOATS, "*fp32")
    )
    kinds |= dict.fromkeys(constants, "constexpr") | (types or {})
    signature = {name: kinds.get(name, "*bf16") for name in names}
    if kernel.is_gluon():  # what lies at multiples of 16 bytes, as all that PyTorch allocates
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if signature[name].startswith("*") or name.endswith("stride")
        }
        source = GluonASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    else:
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    FORMS.setdefault(kernel, []).append((source, {"num_warps": warps, "num_stages": stages}))


def chosen(most: int | None) -> Iterator[Form]:
    """So many forms of each kernel, the first and the last among them; None: all."""
    for forms in FORMS.values():
        count = len(forms) if most is None else min(most, len(forms))
        yield from (forms[place * (len(forms) - 1) // max(1, count - 1)] for place in range(count))


def compile_form(source: Any, options: dict[str, Any]) -> None:
    found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert ".entry" in found.asm["ptx"]
    assert found.metadata.shared <= SHARED, (
        f"{source.fn.__name__} takes {found.metadata.shared} bytes of shared memory, {SHARED} at most"
    )


def joins() -> None:
    usual = {"DELTA": True, "DEPENDENT": False, "BLOCK": 1024}
    for after, before, of_sum in ((1, 1, False), (0, 2, False), (2, 0, True)):
        check(
            residual_norm._join,
            **usual | {"DEPENDENT": of_sum},
            OTHER=not of_sum,
            BRANCH=not of_sum,
            OF_SUM=of_sum,
            SCALAR=of_sum,
            AFTER=after,
            AFTER_BIAS=after == 2,
            BEFORE=before,
            BEFORE_BIAS=before == 2,
        )


def sums_over_ranks() -> None:
    for kind, ranks, block, normed in (
        ("fp32", 2, 64, True),
        ("bf16", 4, 4096, False),
        ("fp16", 8, 8192, True),
        ("fp32", 3, 128, False),
        ("bf16", 4, 8192, True),
    ):
        types = dict.fromkeys(("parts", "states", "out", "weights"), f"*{kind}") | {"places": "*i64", "counted": "*i32"}
        types |= dict.fromkeys(("part_stride", "count", "rows", "slots", "words"), "i32")
        for kernel in (all_reduce_kernels.to_all, all_reduce_kernels.by_owners):
            check(
                kernel,
                max(1, min(block // 512, 16)),
                types,
                RANK=1,
                RANKS=ranks,
                BLOCK=block,
                NORMED=normed,
                DEPENDENT=normed,
            )
        check(
            all_reduce_kernels.of_all,
            max(1, min(block // 512, 16)),
            types,
            RANK=1,
            RANKS=ranks,
            BLOCK=block,
            NORMED=normed,
            DEPENDENT=normed,
        )
        products = types | dict.fromkeys(("x", "codes", "bias"), f"*{kind}") | {"outer": "*fp32"}
        rows = plain_cut(3584, 2 if normed else 4, 2048, scaled=normed) | {"BIASED": not normed, "DEPENDENT": normed}
        check(gemv_all_reduce.linear_to_all, 8, products, RANK=1, RANKS=ranks, **rows)
    way = dict.fromkeys(("stride", "rows", "each", "columns", "most"), "i32") | {"places": "*i64", "counted": "*i32"}
    for kind, ranks in (("bf16", 4), ("i32", 2), ("fp32", 8)):
        types, sizes = (
            way | dict.fromkeys(("numbers", "own", "out"), f"*{kind}"),
            {"RANKS": ranks, "BLOCK": gather_broadcast.BLOCK, "DEPENDENT": True},
        )
        check(
            gather_broadcast_kernels.post,
            gather_broadcast.WARPS,
            types,
            RANK=0 if kind == "i32" else 1,
            FIRST=int(kind == "i32"),
            **sizes,
        )
        check(gather_broadcast_kernels.take, gather_broadcast.WARPS, types, RANK=1 if kind == "i32" else 0, **sizes)
    numbers = dict.fromkeys(("side", "room", "first", "turn", "wanted", "count"), "i32") | {
        "numbers": "*i32",
        "reads": "*i32",
        "out": "*i32",
        "rooms": "*i64",
        "turns": "*i64",
    }
    for kernel in (gpu_p2p._post, gpu_p2p._take):
        check(kernel, 8, numbers, BLOCK=gpu_p2p.BLOCK)
    check(gpu_p2p._tell, 4, numbers | {"reads": "*i64"})


def all_heads() -> None:
    sizes = {"QUERIES": 8, "KEYS": 4, "HALF": 64, "HALF_BLOCK": 64, "TILE": 16, "MOST": 448.0}
    flags = ("TURN", "NORM", "LAYER", "WHOLE", "BIAS", "AFTER", "VALUE_NORM", "FP8", "APART", "DEPENDENT")
    for on in ("TURN DEPENDENT", "NORM LAYER BIAS APART", "TURN NORM WHOLE VALUE_NORM", "TURN NORM AFTER FP8"):
        set_flags = {flag: flag in on.split() for flag in flags}
        pools = {"keys": "*fp8e4nv", "values": "*fp8e4nv"} if set_flags["FP8"] else {}
        check(
            qk_norm_rope_store._rotate_and_store, 8, {"table": "*bf16", "scales": "*fp32"} | pools, **sizes, **set_flags
        )
    check(qk_norm_rope_store._whole_scales, 4, {"scales": "*fp32"}, QUERIES=8, KEYS=4, DIM=64, BLOCK=512)


def activations() -> None:
    rows = plain_cut(512, 4, 512) | {"BIASED": False, "DEPENDENT": True}
    for name in ACTIVATIONS:
        check(activation_kernels._gated, NAME=name, BLOCK=1024, DEPENDENT=name == "silu")
        check(activation_kernels._activate, NAME=name, BLOCK=1024)
        check(gemv_kernels.gate_up, 2, {"norm": "*bf16"}, NORMED=name == "silu", NAME=name, **rows)
    check(gemv_kernels.heads, 2, QUERIES=8, KEYS=4, HALF=64, NORMED=False, **rows)
    check(rms_norm._rms_norm, 8, BLOCK=4096, DEPENDENT=True)
    check(rms_norm._add_rms_norm, 8, BLOCK=4096, DEPENDENT=True)
    normed = {"raw": "*fp32", "counters": "*i32", "head_eps": "fp32"}
    check(gemv_qk_norm.normed_heads, 2, normed, QUERIES=8, KEYS=4, HALF=40, HALF_BLOCK=64, NORMED=True, **rows)


def plain_cut(inputs: int, rows: int, block: int, scaled: bool = False) -> dict[str, Any]:
    """Constants of the kernels of one row for a weight of plain numbers."""
    return {"FORMAT": None, "meta": None, "CUT": GemvCut(inputs, rows, block, 8, scaled)}


def packed(
    form: int, kind: str, group: int, words: str = "*i16", outer: bool = False, sizes: tuple[int, int] = (0, 0)
) -> PackedFormat:
    dtype = {"*i16": torch.int16, "*i8": torch.int8, "*fp8e4nv": torch.float8_e4m3fn}[words]
    table = TABLE if form == TABLE_FORM else ()
    return format_of(form, kind, group, 128, 8, table, outer, torch.bfloat16, dtype, True, *sizes)


def few_bits() -> None:
    types = dict.fromkeys(("meta", "counters"), "*i32") | dict.fromkeys(
        ("rows", "inputs", "y_stride", "first", "last"), "i32"
    )
    types |= dict.fromkeys(("outer", "squares", "left_squares", "partial"), "*fp32")
    shape = {"EPILOGUE": Epilogue(False, 0, False, False, ""), "TILE": QuantizedGemmTile(16, 64, 2, 3, 4, True)}
    kinds = [(NIBBLES, "*i16", 64, kind) for kind in ("plain", "scaled", "shifted", "zeros", "zeros, scaled")]
    kinds += [
        (FLOATS_FORM, "*i16", 32, "floats, scaled"),
        (TABLE_FORM, "*i16", 64, "table, scaled"),
        (BYTES, "*i8", 128, "scaled"),
        (BYTES, "*i8", 128, "shifted"),
        (BYTES, "*fp8e4nv", 128, "scaled"),
        (BYTES, "*fp8e4nv", 128, "plain"),
    ]
    for form, words, group, kind in kinds:
        weight = packed(form, kind, group, words)
        check(quantized_gemm_kernels.multiply, 4, types | {"words": words}, FORMAT=weight, DEPENDENT=False, **shape)
        check(quantized_weight_kernels.restore, 4, types | {"words": words}, FORMAT=weight, OUTPUTS=64)
    check(quantized_gemm_kernels.multiply, 4, types | {"words": words}, FORMAT=weight, DEPENDENT=True, **shape)
    for name in ("", "silu"):
        folded = shape | {"EPILOGUE": Epilogue(False, 1, False, not name, name), "DEPENDENT": True}
        weight = packed(NIBBLES, "zeros, scaled", 128)
        check(quantized_gemm_kernels.multiply, 4, types | {"words": "*i16"}, FORMAT=weight, **folded)


def int8_products() -> None:
    types = {"x_scale": "*fp32", "weight_scale": "*fp32", "rows": "i32", "inputs": "i32"}
    for tile in {
        batch_invariant_matmul.tile_for(rows, outputs, torch.int8, (9, 0), 132)
        for rows in (16, 65, 128, 200, 5000)
        for outputs in (4096, 28672)
    }:
        parts = {
            "x": f"tensordesc<i8[{tile.rows},{tile.depth}]>",
            "weight": f"tensordesc<i8[{tile.outputs},{tile.depth}]>",
        }
        sizes = {
            "ROWS": tile.rows,
            "OUTPUTS": tile.outputs,
            "DEPTH": tile.depth,
            "GROUP": batch_invariant_matmul.GROUP,
            "FLATTEN": tile.flatten,
        }
        check(
            batch_invariant_matmul.multiply,
            tile.warps,
            types | parts,
            stages=tile.stages,
            **sizes,
            BIAS=True,
            X_SCALED=True,
            WEIGHT_SCALED=True,
            WHOLE=True,
        )
    for kept, top in (("*fp8e4nv", 448.0), ("*i8", 127.0)):
        check(
            quantize_activations.quantize_each_row,
            4,
            {"y": kept, "scales": "*fp32", "inputs": "i32"},
            BLOCK=4096,
            TOP=top,
        )


def recurrences() -> None:
    types = dict.fromkeys(("q", "k", "v", "decay", "beta", "states", "out"), "*fp32") | {
        "read": "*i64",
        "write": "*i64",
    }
    for channels, delta in ((False, True), (True, True), (False, False)):
        sizes = {
            "HEADS": 32,
            "SHARED": 2,
            "KEY": 128,
            "VALUE": 128,
            "KEY_BLOCK": 128,
            "COLUMNS": recurrent_scan.COLUMNS,
        }
        check(recurrent_scan._advance, 4, types, **sizes, CHANNELS=channels, DELTA=delta)
    types |= dict.fromkeys(("x", "dt", "a", "b", "c"), "*fp32") | {"starts": "*i64"}
    for single in (False, True):
        check(recurrent_scan._select, 4, types, CHANNELS=8192, SIZE=16, SIZE_BLOCK=16, BLOCK=32, SINGLE=single)


def states_with_what_stands_around() -> None:
    types = dict.fromkeys(
        ("q", "k", "v", "bias", "rate", "skip", "norm", "states", "memory", "taps", "taps_bias", "mixed"), "*fp32"
    )
    types |= dict.fromkeys(("read", "write", "starts"), "*i32") | dict.fromkeys(
        ("a_stride", "b_stride", "z_stride", "gate_stride", "x_stride"), "i32"
    )
    types |= dict.fromkeys(("scale", "unit", "reach", "least", "most"), "fp32")
    usual = {
        "HEADS": 32,
        "SHARED": 2,
        "TILED": False,
        "KEY": 128,
        "KEY_BLOCK": 128,
        "SKIP": False,
        "TIMES": False,
        "UNIT": True,
        "DELTA": True,
    }
    for value, columns, on, warps in (
        (128, 128, {"GATE": "silu"}, 8),
        (128, 8, {"GATE": ""}, 1),
        (128, 32, {"GATE": ""}, 4),
        (128, 128, {"GATE": "sigmoid", "CHANNELS": True}, 8),
        (64, 64, {"GATE": "", "DELTA": False, "UNIT": False, "SKIP": True, "TIMES": True}, 4),
    ):
        sizes = {"VALUE": value, "COLUMNS": columns, "CHANNELS": False, "DEPENDENT": bool(on["GATE"])}
        check(
            linear_attention_scan._advance,
            warps,
            types | {"out": "*bf16" if on["GATE"] else "*fp32"},
            **usual | sizes | on,
        )
    types |= dict.fromkeys(("own", "past", "befores"), "*fp32")
    for delta, value in ((True, 128), (False, 64)):
        sizes = {name: usual[name] for name in ("HEADS", "SHARED", "TILED", "KEY", "KEY_BLOCK")} | {
            "VALUE": value,
            "SIZE": chunked_linear_attention.SIZE,
            "UNIT": delta,
        }
        for precision in ("tf32", "tf32x3"):
            sizes |= {"PRECISION": precision}
            check(chunked_linear_attention._solve, 8, types, VALUE_BLOCK=value, **sizes)
            check(
                chunked_linear_attention._pass,
                8,
                types,
                COLUMNS=chunked_linear_attention.COLUMNS,
                DELTA=delta,
                TIMES=not delta,
                **sizes,
            )
            check(
                chunked_linear_attention._give, 8, types | {"out": "*fp32"}, VALUE_BLOCK=value, SKIP=not delta, **sizes
            )
            if delta:
                check(
                    chunked_kda._solve,
                    4,
                    types | {"seen": "*fp32"},
                    VALUE_BLOCK=value,
                    **sizes | {"SIZE": chunked_kda.SIZE},
                )
                check(
                    chunked_kda._pass,
                    4,
                    types | {"seen": "*fp32", "out": "*fp32"},
                    COLUMNS=chunked_kda.COLUMNS,
                    **sizes | {"SIZE": chunked_kda.SIZE},
                )
    kernel = {"CHANNELS": 8192, "WIDTH": 4, "BIASED": False, "NAME": "silu"}
    short = types | {"memory": "*bf16", "out": "*bf16"}
    check(
        causal_conv._convolve,
        4,
        short,
        **kernel | {"NAME": "", "GATED": True},
        ROWS=4,
        BLOCK=512,
        TOKENS=16,
        GIVES=True,
        LEAVES=True,
        DEPENDENT=True,
    )
    for gives, leaves in ((True, True), (True, False), (False, True)):
        check(
            causal_conv._convolve,
            4,
            types | {"memory": "*bf16", "out": "*fp32"},
            **kernel,
            ROWS=4,
            BLOCK=512,
            TOKENS=16,
            GATED=False,
            GIVES=gives,
            LEAVES=leaves,
            DEPENDENT=leaves,
        )
    rows = plain_cut(2560, 4, 512) | {"NORMED": True, "DEPENDENT": True}
    check(
        gemv_conv._convolved,
        2,
        types | {"memory": "*bf16", "norm": "*bf16"},
        **kernel,
        FIRST=0,
        SEEN=4,
        TAPS_BIASED=True,
        **rows,
    )
    check(output_gates._sigmoid, 4, types | {"out": "*bf16"}, SIZE=4096, BLOCK=1024, DEPENDENT=True)
    flags = {"SPANS": 8, "SIZE": 512, "BLOCK": 512, "NORM": True, "WEIGHTS": 512, "NAME": "silu", "DEPENDENT": True}
    check(output_gates._normed, 4, types | {"x": "*fp32", "weight": "*fp32"}, **flags, GATE_FIRST=True)


def latents() -> None:
    types = dict.fromkeys(("rows_ptr", "starts_ptr", "contexts_ptr", "table_ptr", "counter_ptr", "slots_ptr"), "*i32")
    types |= dict.fromkeys(("partial_ptr", "maxima_ptr", "sums_ptr"), "*fp32") | dict.fromkeys(
        ("scale", "row_scale"), "fp32"
    )
    types |= dict.fromkeys(
        (
            "sequences",
            "extra",
            "first",
            "q_token",
            "q_head",
            "pool_row",
            "table_row",
            "k_token",
            "k_head",
            "v_token",
            "v_head",
            "kv_slot",
        ),
        "i32",
    )
    sizes = {"RANK": 512, "RANK_P2": 512, "TURNED": 64, "TURNED_P2": 64, "PAGE": 16, "STAGES": 2}
    for kept, number, tile in (
        ("*bf16", "*bf16", (64, 32, 8)),
        ("*fp8e4nv", "*bf16", (64, 32, 8)),
        ("*fp32", "*fp32", (16, 16, 4)),
    ):
        own = types | {"pool_ptr": kept, "q_ptr": number, "out_ptr": number}
        usual = sizes | {"HEADS": 20, "PRECISION": "ieee" if kept == "*fp32" else "tf32", "SEQUENCES_P2": 64}
        check(
            attention_latent.decode_kernel,
            4,
            own,
            **usual,
            GROUPS=2,
            SHORTEST=64,
            MERGED=12,
            BLOCK_M=16,
            BLOCK_N=tile[1],
        )
        check(attention_latent.extend_kernel, tile[2], own, **usual, BLOCK_M=tile[0], BLOCK_N=tile[1])
    for kept in ("*bf16", "*fp8e4nv"):
        check(
            kv_cache_write.store_kernel,
            4,
            types | {"k_pool": kept},
            v_ptr=None,
            v_pool=None,
            DIM=576,
            WIDTH=576,
            WIDTH_P2=1024,
            MOST=448.0,
        )
        rows = {
            "HEADS": 16,
            "DIM": 128,
            "RANK": 512,
            "RANK_BLOCK": 512,
            "HALF": 32,
            "HALF_BLOCK": 32,
            "TILE": latent_norm_rope_store.TILE,
            "MOST": 448.0,
        }
        own = {
            "pool": kept,
            "query_stride": "i32",
            "latent_stride": "i32",
            "scale": "fp32",
            "first": "i32",
            "queries": "i32",
        }
        check(
            latent_norm_rope_store._latent_rows,
            2,
            own,
            **rows,
            TURN=kept == "*bf16",
            FP8=kept != "*bf16",
            DEPENDENT=True,
        )


def choices() -> None:
    types = dict.fromkeys(("positions_ptr", "rows_ptr", "table_ptr", "slots_ptr", "counts_ptr"), "*i32") | {
        "scores_ptr": "*fp32",
        "shares_ptr": "*fp32",
    }
    types |= dict.fromkeys(("first", "most", "q_token", "table_row", "scores_row"), "i32") | {"scale": "fp32"}
    for number, keys, count in (("*bf16", 64, 64), ("*bf16", 64, 32), ("*fp32", 16, 64)):
        sizes = {
            "HEADS": count,
            "HEADS_P2": count,
            "DIM": 128,
            "DIM_P2": 128,
            "PAGE": 16,
            "SPAN": topk_select.SPAN,
            "KEYS": keys,
        }
        check(
            topk_select.score_kernel,
            4,
            types | {"q_ptr": number, "keys_ptr": number},
            **sizes,
            PRECISION="ieee" if number == "*fp32" else "tf32",
        )
    check(topk_select.select_topk_kernel, topk_select.WARPS, types, PAGE=16, BLOCK=topk_select.BLOCK)


def one_row_bits() -> None:
    rows = {"CUT": GemvCut(512, 8, 4, 8, False), "NORMED": True, "DEPENDENT": True}
    types = {"words": "*i16", "meta": "*i32", "outer": "*fp32", "norm": "*bf16"}
    kinds = ("plain", "scaled", "shifted", "zeros", "zeros, scaled")

    def weight(kind: str, group: int) -> PackedFormat:
        return packed(NIBBLES, kind, group, sizes=(4096, 512))

    for kind, group in [
        *((kind, 2**30 if kind in ("plain", "zeros") else 64) for kind in kinds),
        ("scaled", 32),
        ("scaled", 128),
    ]:
        check(gemv_kernels.linear, 1, types, **rows, FORMAT=weight(kind, group), BIASED=False, ADDED=True)
    check(gemv_kernels.gate_up, 1, types, **rows, FORMAT=weight("zeros, scaled", 64), BIASED=True, NAME="silu")
    heads = rows | {"CUT": GemvCut(512, 8, 4, 8, True), "FORMAT": weight("scaled", 64), "BIASED": False}
    check(gemv_kernels.heads, 1, types, **heads, QUERIES=8, KEYS=4, HALF=64)


ENDS = (Epilogue(True, 33, False, False, "silu"), Epilogue(True, 0, True, True, ""))


def few_rows_by_tensor_cores() -> None:
    types = {
        "words": "*i16",
        "meta": "*i32",
        "outer": "*fp32",
        "norm": "*bf16",
        "squares": "*fp32",
        "left_squares": "*fp32",
    }
    types |= dict.fromkeys(("rows", "stride", "y_stride"), "i32")
    for rows, shape in ((8, (64, 2, 2, 3)), (16, (32, 4, 2, 2)), (32, (128, 1, 4, 2)), (64, (32, 2, 2, 2))):
        tile = SkinnyGemmTile(*shape)
        sizes = {"TILE": tile, "ROWS": rows, "RING": tile.ring(rows, 64), "PROGRAMS": 32, "DEPENDENT": True}
        for kind, end in zip(KINDS, ENDS, strict=True):
            weight = packed(NIBBLES, kind, 64, outer=True, sizes=(2064, 2064))
            check(skinny_gemm_kernels.multiply, tile.split * tile.side, types, **sizes, FORMAT=weight, EPILOGUE=end)


def many_rows_by_tensor_cores() -> None:
    types = {
        "meta": "*i32",
        "outer": "*fp32",
        "norm": "*bf16",
        "squares": "*fp32",
        "left_squares": "*fp32",
        "partial": "*fp32",
        "counters": "*i32",
    }
    types |= dict.fromkeys(("rows", "y_stride"), "i32")
    kinds = [
        (0, "i16", 64, "zeros, scaled"),
        (1, "i16", 32, "floats, scaled"),
        (3, "i16", 2**30, "table"),
        (2, "i8", 128, "shifted"),
        (2, "fp8e4nv", 2**30, "plain"),
    ]
    tiles = cycle((WgmmaTile(128, 256), WgmmaTile(128, 64, 2), WgmmaTile(64, 64, 3, 4, 2)))
    for (form, words, group, kind), end in product(kinds, ENDS):
        tile = next(tiles)
        box = wgmma_gemm_kernels.codes_shape(form, tile.outputs, bool(end.name))
        places = {"x": ([4, tile.rows, 32], "bf16", 16), "codes": (box, words, 8 if form == BYTES else 16)}
        brought = {
            name: f"tensordesc<{dtype}{shape},{wgmma_gemm_kernels.shared(bits, len(shape))!r}>"
            for name, (shape, dtype, bits) in places.items()
        }
        weight = packed(form, kind, group, f"*{words}", outer=True, sizes=(2064, 2080))
        sizes = {"TILE": tile, "RING": tile.ring(form), "DEPENDENT": True}
        check(wgmma_gemm_kernels.multiply, tile.warps, types | brought, **sizes, FORMAT=weight, EPILOGUE=end)


def few_rows_by_parts() -> None:
    types = {
        "words": "*i16",
        "meta": "*i32",
        "outer": "*fp32",
        "norm": "*bf16",
        "squares": "*fp32",
        "left_squares": "*fp32",
        "partial": "*fp32",
        "counters": "*i32",
    }
    types |= dict.fromkeys(("rows", "stride", "y_stride"), "i32") | {"k_pool": "*fp8e4nv", "v_pool": "*fp8e4nv"}
    ends = (
        {"HEADS": None, "EPILOGUE": Epilogue(True, 33, False, False, "silu")},
        {"HEADS": None, "EPILOGUE": Epilogue(True, 0, True, True, "")},
        {"HEADS": HeadSizes(8, 4, 128), "EPILOGUE": Epilogue(True, 33, False, False, "")},
    )
    kinds = (
        (NIBBLES, "*i16", "zeros, scaled"),
        (NIBBLES, "*i16", "plain"),
        (TABLE_FORM, "*i16", "table, scaled"),
        (FLOATS_FORM, "*i16", "floats"),
        (BYTES, "*i8", "plain"),
        (BYTES, "*fp8e4nv", "scaled"),
    )
    shapes = ((8, (64, 4, 2, 4, 2, 2, 2)), (16, (32, 16, 1, 1, 1, 1)), (32, (128, 2, 4, 4, 2, 1)))
    for (form, words, kind), end, (rows, shape) in zip(kinds, cycle(ends), cycle(shapes), strict=False):
        tile = SplitKTile(*shape)
        weight = packed(form, kind, 64, words, outer=True, sizes=(2048, 2112))
        sizes = {"TILE": tile, "ROWS": rows, "PROGRAMS": 4 * tile.slices, "DEPENDENT": True}
        own = types | ({"x": "*i32"} if form == BYTES else {})
        check(split_k_gemm_kernels.multiply, tile.split * tile.side, own, **sizes, FORMAT=weight, **end)


def decodes() -> None:
    types = dict.fromkeys(("rows_ptr", "contexts_ptr", "table_ptr", "counter_ptr"), "*i32")
    types |= dict.fromkeys(("partial_ptr", "maxima_ptr", "sums_ptr"), "*fp32") | dict.fromkeys(
        ("scale", "inner"), "fp32"
    )
    types |= dict.fromkeys(("sequences", "extra", "q_token", "q_head", "kv_slot", "kv_head", "table_row"), "i32")
    usual = {
        "KV_HEADS": 8,
        "PAGE": 16,
        "WINDOW": 0,
        "CHUNK": 0,
        "CAPPED": False,
        "BLOCK_M": 16,
        "BLOCK_N": 64,
        "SHORTEST": 64,
        "STAGES": 3,
    }
    usual |= {"PRECISION": "tf32", "DEPENDENT": True, "skip_ptr": None, "lse_ptr": None, "sinks_ptr": None}
    for warps, group, dim, merged, sequences in (
        (4, 4, 256, 8, 16),
        (2, 4, 128, 16, 16),
        (2, 8, 128, 8, 1),
        (2, 16, 64, 8, 1),
    ):
        sizes = {
            "GROUP": group,
            "GROUP_P2": group,
            "DIM": dim,
            "DIM_P2": dim,
            "MERGED": merged,
            "SEQUENCES_P2": sequences,
        }
        check(attention_decode.decode_kernel, warps, types, **usual, **sizes)


def one_row_by_tensor_cores() -> None:
    types, flags = (
        {"words": "*i16", "meta": "*i32", "outer": "*fp32", "norm": "*bf16"},
        {"NORMED": True, "BIASED": True, "DEPENDENT": True},
    )
    kinds = (("plain", 2**30), ("zeros", 2**30), ("shifted", 64), ("scaled", 128), ("zeros, scaled", 32))
    launches = cycle(product((TensorCoreGemvLaunch(16, 4, 3), TensorCoreGemvLaunch(32, 8, 2)), (96, 2560)))
    for (kind, group), (launch, inputs) in zip((*kinds, kinds[0], kinds[-1]), launches, strict=False):
        weight = packed(NIBBLES, kind, group, outer=group == 2**30, sizes=(1536, inputs))
        for kernel, half, more in (
            ("linear", 0, {"ADDED": True}),
            ("gate_up", 768, {"NAME": "gelu"}),
            ("heads", 64, {"QUERIES": 8, "KEYS": 2}),
        ):
            cut = launch.cut(1536, half, inputs, gemv_tensor_core_kernels.pieces(group, kind), 16)
            kept = flags | more | {"FORMAT": weight, "CUT": cut}
            check(getattr(gemv_tensor_core_kernels, kernel), launch.warps, types, **kept)


def routers() -> None:
    types = {
        "scores": "*fp32",
        "correction": "*fp32",
        "chosen": "*i32",
        "weights": "*fp32",
        "counts": "*i64",
        "slots": "*i32",
        "count": "i32",
    }
    types |= dict.fromkeys(("outside", "floor", "scale", "jitter"), "fp32")
    usual = {
        "TOP": 8,
        "LANES": 8,
        "SIZE": 128,
        "KEPT": 4,
        "TWO": True,
        "COUNTED": True,
        "SLOTTED": True,
        "DEPENDENT": True,
    }
    flags = ("MIXER", "SIGMOID", "BEST_FIRST", "CORRECTED", "NORMALISE")
    for on in ("NORMALISE", "SIGMOID CORRECTED NORMALISE", "BEST_FIRST", "BEST_FIRST SIGMOID", "MIXER"):
        set_flags = {flag: flag in on.split() for flag in flags}
        constants = {"GROUPS": 8 if set_flags["CORRECTED"] else 1} | set_flags | usual
        check(expert_routing_kernels.choose, 1, types, **constants)
        scores = {"weight": "*fp32", "bias": "*fp32", "rows": "i32", "counters": "*i32", "norm": "*bf16"}
        check(
            expert_routing_kernels.score_rows,
            4,
            types | scores,
            INPUTS=2880,
            BLOCK=4096,
            EXPERTS=2,
            BIASED=True,
            NORMED=True,
            CHOOSING=True,
            **constants,
        )
    for kept in ("*fp32", "*bf16"):
        types |= scores | {"weight": kept}
        check(
            expert_routing_kernels.score_tiles,
            4,
            types,
            INPUTS=2048,
            ROWS=16,
            EXPERTS=16,
            DEPTH=128,
            BIASED=True,
            PRECISION="tf32x3",
        )
    check(
        expert_routing_kernels.score_rows,
        4,
        types,
        INPUTS=2048,
        BLOCK=2048,
        EXPERTS=4,
        BIASED=False,
        NORMED=True,
        CHOOSING=True,
        **constants,
    )
    check(
        expert_align_blocks._sort,
        4,
        dict.fromkeys(("chosen", "pairs", "experts", "total"), "*i32") | {"count": "i32"},
        EXPERTS=128,
        BINS=256,
        ROWS=32,
        CHUNK=1024,
        DEPENDENT=True,
    )
    ints = dict.fromkeys(("chosen", "counts", "pairs", "experts", "total"), "*i32") | dict.fromkeys(
        ("count", "chunks"), "i32"
    )
    check(expert_align_blocks._count, 4, ints, EXPERTS=128, BINS=256, CHUNK=2048, DEPENDENT=True)
    check(expert_align_blocks._place, 4, ints, EXPERTS=128, BINS=256, ROWS=128, CHUNK=2048, CHUNKS=32, DEPENDENT=True)


def experts() -> None:
    types = {
        "chosen": "*i32",
        "weights": "*fp32",
        "inner": "i32",
        "here": "i32",
        "limit": "fp32",
        "switch": "*fp32",
        "inputs": "i32",
        "count": "i32",
    }
    types |= dict.fromkeys(("pairs", "experts", "total"), "*i32")
    cut = {
        "SIZE": 2048,
        "TOP": 8,
        "ROWS": 4,
        "BLOCK": 1024,
        "VECTOR": 8,
        "BIASED": True,
        "WEIGHED": True,
        "DEPENDENT": True,
    }
    besides = {"SHARED": True, "SWITCHED": True, "ADDED": True}
    for partial in (False, True):
        check(expert_gemv_kernels.gemv_gate_up, 4, types, NAME="silu", LIMITED=True, GROUPS=3, PARTIAL=partial, **cut)
        for top, size in ((8, 768), (6, 1408)):
            check(
                expert_gemv_kernels.gemv_down,
                4,
                types,
                LANES=8,
                PARTIAL=partial,
                **cut | {"TOP": top, "SIZE": size, "ROWS": 2},
                **besides,
            )
        check(
            expert_gemm_kernels.combine,
            4,
            types,
            TOP=8,
            BLOCK=1024,
            WEIGHED=True,
            DEPENDENT=True,
            PARTIAL=partial,
            **besides,
        )
    check(
        expert_gemm_kernels.combine_norm,
        4,
        types,
        TOP=8,
        BLOCK=2048,
        WEIGHED=True,
        SHARED=True,
        SWITCHED=True,
        DEPENDENT=True,
    )
    for tile in (*TILES.values(), MANY, *SECOND.values(), *NARROW.values(), FIXED, SMALL, replace(MANY, resident=True)):
        shape = {
            "ROWS": tile.rows,
            "OUTPUTS": tile.outputs,
            "DEPTH": tile.depth,
            "GROUP": 8,
            "DESCRIBED": tile.described,
            "EVEN": tile.described,
        }
        weight = {"weight": f"tensordesc<bf16[{tile.outputs},{tile.depth}]>"} if tile.described else {}
        for name in ("", "quick_gelu") if tile not in SECOND.values() else ("",):
            taken = {"x": f"tensordesc<bf16[{tile.rows},{tile.depth}]>"} if tile.described and not name else {}
            flags = {
                "TOP": 8,
                "NAME": name,
                "LIMITED": bool(name),
                "BIASED": not tile.described,
                "WEIGHED": bool(name) and not tile.described,
            }
            more = {"FLATTEN": tile.resident, "DEPENDENT": True}
            check(
                expert_gemm_kernels.grouped,
                tile.warps,
                types | weight | taken,
                stages=tile.stages,
                **shape,
                **flags,
                **more,
            )


def experts_elsewhere() -> None:
    types = dict.fromkeys(("copies", "table", "shared", "counts"), "*i64") | dict.fromkeys(
        ("chosen", "slots", "places"), "*i32"
    )
    for chunk, slots in ((expert_replica_select.FEW, "*i32"), (expert_replica_select.CHUNK, "*i64")):
        check(
            expert_replica_select._select_replicas,
            4 if chunk > 128 else 1,
            types | {"slots": slots, "count": "i32", "here": "i32"},
            TOP=8,
            COPIES=33,
            CHUNK=chunk,
            SLOTTED=True,
            COUNTED=True,
            DEPENDENT=True,
        )


def experts_in_main_memory() -> None:
    types = dict.fromkeys(("chosen", "experts", "total", "source", "room"), "*i32") | {
        "counter": "*i64",
        "count": "i32",
    }
    for slotted in (False, True):
        check(expert_fetch._choose, 4, types, TOP=8, EXPERTS=128, BINS=256, SLOTTED=slotted, CHUNK=1024)
    check(expert_fetch._copy_experts, 8, types, WORDS=expert_fetch.WORDS)
    check(expert_fetch._copy_experts, 8, types | dict.fromkeys(("source", "room"), "*i8"), WORDS=expert_fetch.WORDS)


def experts_in_few_bits() -> None:
    types = dict.fromkeys(("meta", "pairs", "experts", "total"), "*i32") | {"outer": "*fp32", "limit": "fp32"}
    types |= dict.fromkeys(("count", "inputs", "words_stride", "meta_stride"), "i32")
    kinds = [
        (NIBBLES, "*i16", 64, "zeros, scaled"),
        (FLOATS_FORM, "*i16", 32, "floats, scaled"),
        (BYTES, "*i8", 128, "scaled"),
        (BYTES, "*fp8e4nv", 128, "plain"),
    ]
    for form, words, group, kind in kinds:
        weight = packed(form, kind, group, words, kind == "plain")
        for tile, name in (
            (PACKED_SINGLE, "quick_gelu"),
            (PACKED_SINGLE, ""),
            *((tile, "silu") for tile in PACKED_TILES.values()),
            (PACKED_MANY, "silu"),
            (PACKED_FIXED, ""),
        ):
            shape = {"TILE": tile, "TURN": 8, "TOP": 4 if name else 1, "SINGLE": tile is PACKED_SINGLE}
            flags = {"NAME": name, "LIMITED": bool(name), "BIASED": True, "DEPENDENT": True}
            check(
                quantized_experts_kernels.grouped,
                tile.warps,
                types | {"words": words},
                stages=tile.stages,
                FORMAT=weight,
                **shape,
                **flags,
            )


def adapters() -> None:
    types = {
        "h": "*fp32",
        "starts": "*i64",
        "ranks": "*i32",
        "scales": "*fp32",
        "table": "*i32",
        "order": "*i32",
        "tiles": "*i32",
    }
    types |= dict.fromkeys(
        ("x_stride", "y_stride", "inputs", "outputs", "site", "sites", "most_pieces", "pieces", "blocks"), "i32"
    )
    for rows, rank in ((adapter_blocks.FEW, 16), (adapter_blocks.FEW, 128), (adapter_blocks.MANY, 64)):
        depth = adapter_kernels.depth_for(rank)
        for grain in (1, adapter_kernels.GRAIN):
            check(
                adapter_kernels.shrink,
                4,
                types,
                ROWS=rows,
                RANK=rank,
                DEPTH=depth,
                CUT=adapter_kernels.CUT,
                GRAIN=grain,
            )
            for steps in (1, adapter_kernels.LONG // adapter_kernels.OUTPUTS):
                check(
                    adapter_kernels.expand,
                    4,
                    types,
                    ROWS=rows,
                    RANK=rank,
                    OUTPUTS=adapter_kernels.OUTPUTS,
                    STEPS=steps,
                    PARTS=14,
                    GRAIN=grain,
                )
    for rank in (16, 128):
        check(
            lora_fused_gemm.find,
            4,
            types | {"places": "*i32", "groups": "*i32", "shapes": "*i32", "room": "i32"},
            RANK=rank,
            BLOCK=1024,
        )
        for tile in {
            batch_invariant_matmul.tile_for(rows, outputs, torch.bfloat16, (9, 0), 132)
            for rows in (1, 64)
            for outputs in (4096, 28672)
        }:
            parts = {
                "x_tiles": f"tensordesc<bf16[{tile.rows},{tile.depth}]>",
                "weight": f"tensordesc<bf16[{lora_fused_gemm.OUTPUTS},{tile.depth}]>",
            }
            parts |= dict.fromkeys(("counters", "places", "groups", "group_of", "piece_of"), "*i32") | dict.fromkeys(
                ("room", "rows"), "i32"
            )
            sizes = {
                "ROWS": tile.rows,
                "OUTPUTS": lora_fused_gemm.OUTPUTS,
                "DEPTH": tile.depth,
                "RANK": rank,
                "PARTS": 2,
                "INNER": lora_fused_gemm.INNER,
            }
            sizes |= {"FEW": adapter_blocks.FEW, "GRAIN": adapter_kernels.GRAIN} | lora_fused_gemm.shrinking(rank, tile)
            check(
                lora_fused_gemm.multiply,
                tile.warps,
                types | parts,
                stages=tile.stages,
                **sizes,
                BIAS=True,
                DEPENDENT=True,
            )


def one_row_with_adapters() -> None:
    """Llama-3.1-8B's products in bfloat16 as they are cut, of one rank and of two."""
    pair = {"h": "*fp32", "pairs": "*bf16", "pair_at": "*i64", "norm": "*bf16", "outer": "*bf16"}
    for size, warps, normed in ((4096, 4, True), (14336, 8, False), (72, 4, True)):
        sizes = {
            "SIZE": size,
            "BLOCK": min(gemv_lora.BLOCK, triton.next_power_of_2(size)),
            "GRAIN": 1 if size % 16 else 16,
            "NORMED": normed,
        }
        check(gemv_lora.shrink, warps, pair, AHEAD=gemv_lora.AHEAD, WIDTH=16, DEPENDENT=True, **sizes)
    numbers = {
        "places": "*i64",
        "starts": "*i64",
        "ranks": "*i32",
        "scales": "*fp32",
        "shapes": "*i32",
    } | dict.fromkeys(("sites", "most_pieces"), "i32")
    check(gemv_lora.place, 1, numbers, WORDS=gemv_lora.WORDS)

    def product(
        kernel: Any, outputs: int, size: int, rank: int, borders: tuple[int, int], more: dict[str, str], **flags: Any
    ) -> None:
        launch = best_launch(outputs, size)
        rows = plain_cut(size, launch.rows, launch.block) | {"BIASED": rank == 64, "DEPENDENT": True}
        check(kernel, launch.warps, pair | more, PAIR=gemv_lora.LoraSizes(rank, *borders), **rows, **flags)

    heads_of, own = (
        {"QUERIES": 32, "KEYS": 8, "HALF": 64, "NORMED": True},
        {"raw": "*fp32", "counters": "*i32", "head_eps": "fp32"},
    )
    for rank, size in ((16, 4096), (64, 14336)):
        product(gemv_kernels.linear, 4096, size, rank, (4096, 4096), {}, NORMED=False, ADDED=True)
        product(gemv_kernels.gate_up, 28672, 4096, rank, (14336, 28672), {}, NORMED=True, NAME="silu")
        product(gemv_kernels.heads, 6144, 4096, rank, (4096, 5120), {}, **heads_of)
        product(gemv_qk_norm.normed_heads, 6144, 4096, rank, (4096, 5120), own, HALF_BLOCK=64, **heads_of)
        sent = {"places": "*i64", "counted": "*i32", "rows": "i32", "words": "i32"}
        product(gemv_all_reduce.linear_to_all, 4096, size // 2, rank, (4096, 4096), sent, RANK=1, RANKS=2)


def all_forms() -> None:
    adapters()
    latents()
    choices()
    recurrences()
    states_with_what_stands_around()
    routers()
    experts()
    experts_in_few_bits()
    experts_in_main_memory()
    experts_elsewhere()
    few_bits()
    int8_products()
    one_row_bits()
    one_row_by_tensor_cores()
    few_rows_by_tensor_cores()
    many_rows_by_tensor_cores()
    few_rows_by_parts()
    decodes()
    joins()
    all_heads()
    sums_over_ranks()
    activations()
    for on in (False, True):
        check(embed_tokens._embed, SCALED=on, WINDOWED=on, PAGE=16, BLOCK=1024, types={"scale": "fp32"})
        check(logit_softcap._adjust, CAPPED=on, BLOCK=1024, types={"scale": "fp32"})
    check(embed_tokens._pages, 1, PAGE=16)
    one_row_with_adapters()


def main(most: int | None) -> None:
    all_forms()
    for source, options in chosen(most):
        compile_form(source, options)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
