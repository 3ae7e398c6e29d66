"""The methods that configurations name: what of each is checked, and what is computed otherwise than it asks."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import ConfigError
from . import quark_config
from .group_size import SIZES
from .quantization_config import CheckpointQuantization

REFUSED = (
    "aqlm",
    "bitnet",
    "bitnet_b158",
    "eetq",
    "fouroversix",
    "fp_quant",
    "gguf",
    "higgs",
    "marlin",
    "metal",
    "quanto",
    "quip",
    "quip_sharp",
    "sinq",
    "spqr",
    "vptq",
)
INSTEAD = "take the unquantised checkpoint, or one of these: "
WEIGHTS_ONLY = "activations are not rounded: the weights alone are read in few bits"
ROWS_TOO = (
    "activations are rounded, each row by its own range, on a GPU and in steps of more than 64 rows; "
    "elsewhere the weights alone are in few bits"
)

Notes = Iterator[str]


def notes_of(quant_config: CheckpointQuantization) -> Notes:
    """A line for each difference. Raises ConfigError for a method that is not read, or what it asks and is not."""
    if not quant_config.method:
        return iter(())
    if quant_config.method in REFUSED or quant_config.method not in METHODS:
        near = difflib.get_close_matches(quant_config.method, METHODS, 1) if quant_config.method not in REFUSED else []
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise quant_config.refused(
            "quant_method",
            quant_config.method,
            f"checkpoints of this kind are not read; {hint}{INSTEAD}{', '.join(METHODS)}",
        )
    return METHODS[quant_config.method](quant_config)


def _float8(quant_config: CheckpointQuantization) -> Notes:
    quant_config.one_of(
        "fmt", ("e4m3", "float8_e4m3fn", "float8_e4m3"), "float8 weights are read as e4m3 only; convert the checkpoint"
    )
    quant_config.one_of("activation_scheme", ("dynamic", "static"), "known ones: dynamic, static; correct the file")
    activations = quant_config.keys.get("activation_scheme", "dynamic")
    yield f"quant_method {quant_config.method!r} (activations {activations}): {WEIGHTS_ONLY}"


def _compressed(quant_config: CheckpointQuantization) -> Notes:
    quant_config.one_of(
        "quantization_status", ("compressed",), "only compressed checkpoints are read; save it compressed"
    )
    quant_config.none_of(
        ["transform_config"], "its rotations of activations are not computed; take a checkpoint without them"
    )
    sparse = quant_config.table("sparsity_config").get("format")
    if sparse not in (None, "dense"):
        raise quant_config.refused(
            "sparsity_config.format", sparse, "sparse weights are not read; take a checkpoint without sparsity"
        )
    for name, form in _formats(quant_config):
        if form not in FORMATS:
            raise quant_config.refused(
                name, form, f"this format is not read; take the unquantised checkpoint, or one of {', '.join(FORMATS)}"
            )
    for name, group in quant_config.table("config_groups").items():
        if _rounds_activations(name, group):
            yield f"config_groups.{name}: {ROWS_TOO if quant_config.rounds_rows() else WEIGHTS_ONLY}"


def _rounds_activations(name: str, group: object) -> bool:
    if isinstance(group, Mapping):
        return bool(group.get("input_activations") or group.get("output_activations"))
    return "A16" not in name.upper()  # a preset, by its name


FORMATS = (
    "dense",
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp6-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
)


def _formats(quant_config: CheckpointQuantization) -> Iterator[tuple[str, Any]]:
    yield "format", quant_config.keys.get("format") or "dense"
    for name, group in quant_config.table("config_groups").items():
        if isinstance(group, Mapping) and group.get("format"):
            yield f"config_groups.{name}.format", group["format"]


MODELOPT = (
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "FP8_PB_REAL",
    "NVFP4",
    "NVFP4_AWQ",
    "W4A16_NVFP4",
    "W4A8_NVFP4_FP8",
    "MXFP8",
    "MXFP4",
    "W4A8_MXFP4_FP8",
    "W4A16_AWQ",
    "W4A8_AWQ",
    "W8A16",
    "W8A8_SQ_PER_CHANNEL",
    "MIXED_PRECISION",
)
FOR_WEIGHTS = ("FP8_PB_WO", "W4A16_NVFP4", "W4A16_AWQ", "W8A16")


def _modelopt(quant_config: CheckpointQuantization) -> Notes:
    algorithm = quant_config.keys.get("quant_algo")
    algorithm = algorithm.upper() if isinstance(algorithm, str) else algorithm  # it writes some of them small
    if algorithm is not None and algorithm not in MODELOPT:
        raise quant_config.refused(
            "quant_algo",
            quant_config.keys["quant_algo"],
            f"this algorithm is not read; take the unquantised checkpoint, or one of {', '.join(MODELOPT)}",
        )
    if algorithm not in FOR_WEIGHTS:
        yield f"quant_algo {quant_config.keys.get('quant_algo')!r}: {WEIGHTS_ONLY}"


def _gptq(quant_config: CheckpointQuantization) -> Notes:
    kinds = ("gptq", "gptq_v2")
    for key in ("checkpoint_format", "format"):
        quant_config.one_of(
            key,
            kinds,
            f"this layout is not read; known ones: {', '.join(kinds)}; take the checkpoint before it was repacked",
        )
    quant_config.none_of(
        ["is_marlin_format"], "repacked weights are not read; take the checkpoint before it was repacked"
    )
    quant_config.none_of(["rotation", "adapter"], "it is not computed; take a checkpoint without it")
    quant_config.one_of(
        "pack_dtype", ("int32", "torch.int32"), "codes are read from int32 words; convert the checkpoint"
    )
    quant_config.size("bits", "w_bit", most=8)
    quant_config.size(*SIZES)
    return iter(())


def _awq(quant_config: CheckpointQuantization) -> Notes:
    versions = ("gemm", "GEMM")
    quant_config.one_of("version", versions, "only the version gemm is read; convert the checkpoint")
    for key in ("bits", "w_bit"):
        quant_config.one_of(key, (4,), "AWQ is read in 4 bits; take another checkpoint")
    quant_config.size(*SIZES)
    return iter(())


PACKINGS = (
    "auto_round:auto_gptq",
    "auto_round:auto_awq",
    "auto_gptq",
    "auto_awq",
    "auto_round:llm_compressor",
    "auto_round:fp8_static",
    "auto_round:fp8",
)
ROUNDED_TO = (
    "int",
    "fp",
    "fp8",
    "fp8_e4m3",
    "mx_fp",
    "mx_fp4",
    "mx_fp8",
    "mx_fp_rceil",
    "nv_fp",
    "nv_fp4",
    "nv_fp4_with_static_gs",
)


def _auto_round(quant_config: CheckpointQuantization) -> Notes:
    quant_config.one_of(
        "packing_format",
        PACKINGS,
        f"this packing is not read; known ones: {', '.join(PACKINGS)}; export the checkpoint in one of them",
    )
    quant_config.one_of(
        "data_type",
        ROUNDED_TO,
        f"weights of this kind are not read; known ones: {', '.join(ROUNDED_TO)}; export the checkpoint in one of them",
    )
    quant_config.one_of("fmt", ("e4m3",), "float8 weights are read as e4m3 only; export the checkpoint so")
    quant_config.none_of(
        ["rotation_config", "hadamard_config", "transform_config"], "it is not computed; take a checkpoint without it"
    )
    quant_config.size("bits", most=8)
    if (
        quant_config.keys.get("data_type", "int") == "int"
    ):  # of float8 the shapes tell, and this may be a block's two sizes
        quant_config.size(*SIZES)
    if (quant_config.size("act_bits", most=64) or 16) < 16:
        yield f"act_bits {quant_config.keys['act_bits']!r}: {WEIGHTS_ONLY}"


def _bitsandbytes(quant_config: CheckpointQuantization) -> Notes:
    quant_config.one_of("bnb_4bit_quant_type", ("nf4", "fp4"), "known ones: nf4, fp4; correct the file")
    if quant_config.keys.get("load_in_8bit"):
        yield f"load_in_8bit: {WEIGHTS_ONLY}"


NTILES = '"int4_tile_packed_ntile": 16'


def _torchao(quant_config: CheckpointQuantization) -> Notes:
    types = json.dumps(quant_config.keys.get("quant_type"), default=str)
    if NTILES in types and "TILE_PACKED_TO_4D" in types:
        raise quant_config.refused(
            "int4_tile_packed_ntile",
            16,
            "such tiles are an AMD card's and are not read; quantise it in the format 'plain'",
        )
    if "Activation" in types:
        yield f"quant_type: {ROWS_TOO if quant_config.rounds_rows() else WEIGHTS_ONLY}"


ALGORITHMS = (
    "awq",
    "gptq",
    "gptaq",
    "qronos",
    "smooth",
    "smoothquant",
    "autosmoothquant",
    "autoround",
)  # that leave nothing to do to inputs


def _quark(quant_config: CheckpointQuantization) -> Notes:
    export = quant_config.table("export")
    for key, known in (("weight_format", "real_quantized"), ("pack_method", "reorder")):
        if export.get(key, known) != known:
            raise quant_config.refused(f"export.{key}", export[key], f"only {known!r} is read; export it so")
    for where, spec in quark_config.weights(quant_config):
        if spec.get("dtype") not in quark_config.READ:
            raise quant_config.refused(
                f"{where}.dtype",
                spec.get("dtype"),
                f"weights of this dtype are not read; known ones: {', '.join(quark_config.READ)}",
            )
    algorithms = quant_config.keys.get("algo_config") or []
    for each in algorithms if isinstance(algorithms, list) else [algorithms]:
        name = each.get("name") if isinstance(each, Mapping) else each
        if not isinstance(name, str) or name.lower() not in ALGORITHMS:
            raise quant_config.refused(
                "algo_config", name, f"what it does to inputs is not computed; known ones: {', '.join(ALGORITHMS)}"
            )
    if any(
        isinstance(each, Mapping) and each.get("input_tensors")
        for each in (quant_config.keys.get("global_quant_config"), *quant_config.table("layer_quant_config").values())
    ):
        yield f"quark: {WEIGHTS_ONLY}"


def _nothing(quant_config: CheckpointQuantization) -> Notes:
    """The headers say it all."""
    return iter(())


METHODS: Mapping[str, Callable[[CheckpointQuantization], Notes]] = {
    "fp8": _float8,
    "fbgemm_fp8": _float8,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "compressed-tensors": _compressed,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "bitsandbytes": _bitsandbytes,
    "hqq": _nothing,
    "mlx": _nothing,
    "mxfp4": _nothing,
    "quark": _quark,
    "torchao": _torchao,
    "intel/auto-round": _auto_round,
}


OLDER = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
TELLING = {
    "config_groups": "compressed-tensors",
    "quant_algo": "modelopt",
    "w_bit": "awq",
    "load_in_4bit": "bitsandbytes",
    "mode": "mlx",
    "bits": "gptq",
}


def checkpoint_quantization_of(
    quantization: Mapping[str, Any] | None, where: str, other_files: Mapping[str, Mapping[str, Any]]
) -> CheckpointQuantization:
    """What the first of these says: config.json's object, then the files of older tools."""
    if quantization:
        return _checkpoint_quantization(quantization, where, None)
    for name, method in OLDER.items():
        if name in other_files:
            return _checkpoint_quantization(other_files[name], name, method)
    return CheckpointQuantization(where=where)


def _checkpoint_quantization(keys: object, where: str, default: str | None) -> CheckpointQuantization:
    if isinstance(keys, Mapping) and isinstance(inner := keys.get("quantization"), Mapping):
        keys = {**inner, **keys}  # ModelOpt's files have it one level down
    if not isinstance(keys, Mapping):
        raise ConfigError(f"{where}: the quantization is {keys!r:.80}: it must be an object; correct the file")
    method = (
        keys.get("quant_method") or default or next((method for key, method in TELLING.items() if key in keys), None)
    )
    if not isinstance(method, str):
        raise ConfigError(
            f"{where}: quantization key 'quant_method' is {method!r:.80}: it must name the method; correct the file"
        )
    return CheckpointQuantization(method.lower(), where, keys)
