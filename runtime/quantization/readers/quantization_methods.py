"""The methods that configurations name: what of each is checked, and what is computed otherwise than it asks."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import ConfigError
from . import quark_reader
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


def notes_of(asked: CheckpointQuantization) -> Notes:
    """A line for each difference. Raises ConfigError for a method that is not read, or what it asks and is not."""
    if not asked.method:
        return iter(())
    if asked.method in REFUSED or asked.method not in METHODS:
        near = difflib.get_close_matches(asked.method, METHODS, 1) if asked.method not in REFUSED else []
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise asked.refused(
            "quant_method", asked.method, f"checkpoints of this kind are not read; {hint}{INSTEAD}{', '.join(METHODS)}"
        )
    return METHODS[asked.method](asked)


def _float8(asked: CheckpointQuantization) -> Notes:
    asked.one_of(
        "fmt", ("e4m3", "float8_e4m3fn", "float8_e4m3"), "float8 weights are read as e4m3 only; convert the checkpoint"
    )
    asked.one_of("activation_scheme", ("dynamic", "static"), "known ones: dynamic, static; correct the file")
    yield (
        f"quant_method {asked.method!r} (activations {asked.keys.get('activation_scheme', 'dynamic')}): {WEIGHTS_ONLY}"
    )


def _compressed(asked: CheckpointQuantization) -> Notes:
    asked.one_of("quantization_status", ("compressed",), "only compressed checkpoints are read; save it compressed")
    asked.none_of(["transform_config"], "its rotations of activations are not computed; take a checkpoint without them")
    sparse = asked.table("sparsity_config").get("format")
    if sparse not in (None, "dense"):
        raise asked.refused(
            "sparsity_config.format", sparse, "sparse weights are not read; take a checkpoint without sparsity"
        )
    for name, form in _formats(asked):
        if form not in FORMATS:
            raise asked.refused(
                name, form, f"this format is not read; take the unquantised checkpoint, or one of {', '.join(FORMATS)}"
            )
    for name, group in asked.table("config_groups").items():
        if _rounds_activations(name, group):
            yield f"config_groups.{name}: {ROWS_TOO if asked.rounds_rows() else WEIGHTS_ONLY}"


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


def _formats(asked: CheckpointQuantization) -> Iterator[tuple[str, Any]]:
    yield "format", asked.keys.get("format") or "dense"
    for name, group in asked.table("config_groups").items():
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


def _modelopt(asked: CheckpointQuantization) -> Notes:
    algorithm = asked.keys.get("quant_algo")
    algorithm = algorithm.upper() if isinstance(algorithm, str) else algorithm  # it writes some of them small
    if algorithm is not None and algorithm not in MODELOPT:
        raise asked.refused(
            "quant_algo",
            asked.keys["quant_algo"],
            f"this algorithm is not read; take the unquantised checkpoint, or one of {', '.join(MODELOPT)}",
        )
    if algorithm not in FOR_WEIGHTS:
        yield f"quant_algo {asked.keys.get('quant_algo')!r}: {WEIGHTS_ONLY}"


def _gptq(asked: CheckpointQuantization) -> Notes:
    kinds = ("gptq", "gptq_v2")
    for key in ("checkpoint_format", "format"):
        asked.one_of(
            key,
            kinds,
            f"this layout is not read; known ones: {', '.join(kinds)}; take the checkpoint before it was repacked",
        )
    asked.none_of(["is_marlin_format"], "repacked weights are not read; take the checkpoint before it was repacked")
    asked.none_of(["rotation", "adapter"], "it is not computed; take a checkpoint without it")
    asked.one_of("pack_dtype", ("int32", "torch.int32"), "codes are read from int32 words; convert the checkpoint")
    asked.size("bits", "w_bit", most=8)
    asked.size(*SIZES)
    return iter(())


def _awq(asked: CheckpointQuantization) -> Notes:
    versions = ("gemm", "GEMM")
    asked.one_of("version", versions, "only the version gemm is read; convert the checkpoint")
    for key in ("bits", "w_bit"):
        asked.one_of(key, (4,), "AWQ is read in 4 bits; take another checkpoint")
    asked.size(*SIZES)
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


def _auto_round(asked: CheckpointQuantization) -> Notes:
    asked.one_of(
        "packing_format",
        PACKINGS,
        f"this packing is not read; known ones: {', '.join(PACKINGS)}; export the checkpoint in one of them",
    )
    asked.one_of(
        "data_type",
        ROUNDED_TO,
        f"weights of this kind are not read; known ones: {', '.join(ROUNDED_TO)}; export the checkpoint in one of them",
    )
    asked.one_of("fmt", ("e4m3",), "float8 weights are read as e4m3 only; export the checkpoint so")
    asked.none_of(
        ["rotation_config", "hadamard_config", "transform_config"], "it is not computed; take a checkpoint without it"
    )
    asked.size("bits", most=8)
    if asked.keys.get("data_type", "int") == "int":  # of float8 the shapes tell, and this may be a block's two sizes
        asked.size(*SIZES)
    if (asked.size("act_bits", most=64) or 16) < 16:
        yield f"act_bits {asked.keys['act_bits']!r}: {WEIGHTS_ONLY}"


def _bitsandbytes(asked: CheckpointQuantization) -> Notes:
    asked.one_of("bnb_4bit_quant_type", ("nf4", "fp4"), "known ones: nf4, fp4; correct the file")
    if asked.keys.get("load_in_8bit"):
        yield f"load_in_8bit: {WEIGHTS_ONLY}"


NTILES = '"int4_tile_packed_ntile": 16'


def _torchao(asked: CheckpointQuantization) -> Notes:
    types = json.dumps(asked.keys.get("quant_type"), default=str)
    if NTILES in types and "TILE_PACKED_TO_4D" in types:
        raise asked.refused(
            "int4_tile_packed_ntile",
            16,
            "such tiles are an AMD card's and are not read; quantise it in the format 'plain'",
        )
    if "Activation" in types:
        yield f"quant_type: {ROWS_TOO if asked.rounds_rows() else WEIGHTS_ONLY}"


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


def _quark(asked: CheckpointQuantization) -> Notes:
    export = asked.table("export")
    for key, known in (("weight_format", "real_quantized"), ("pack_method", "reorder")):
        if export.get(key, known) != known:
            raise asked.refused(f"export.{key}", export[key], f"only {known!r} is read; export it so")
    for where, spec in quark_reader.weights(asked):
        if spec.get("dtype") not in quark_reader.READ:
            raise asked.refused(
                f"{where}.dtype",
                spec.get("dtype"),
                f"weights of this dtype are not read; known ones: {', '.join(quark_reader.READ)}",
            )
    algorithms = asked.keys.get("algo_config") or []
    for each in algorithms if isinstance(algorithms, list) else [algorithms]:
        name = each.get("name") if isinstance(each, Mapping) else each
        if not isinstance(name, str) or name.lower() not in ALGORITHMS:
            raise asked.refused(
                "algo_config", name, f"what it does to inputs is not computed; known ones: {', '.join(ALGORITHMS)}"
            )
    if any(
        isinstance(each, Mapping) and each.get("input_tensors")
        for each in (asked.keys.get("global_quant_config"), *asked.table("layer_quant_config").values())
    ):
        yield f"quark: {WEIGHTS_ONLY}"


def _nothing(asked: CheckpointQuantization) -> Notes:
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


def asked_of(
    quantization: Mapping[str, Any] | None, where: str, other_files: Mapping[str, Mapping[str, Any]]
) -> CheckpointQuantization:
    """What the first of these says: config.json's object, then the files of older tools."""
    if quantization:
        return _asked(quantization, where, None)
    for name, method in OLDER.items():
        if name in other_files:
            return _asked(other_files[name], name, method)
    return CheckpointQuantization(where=where)


def _asked(keys: object, where: str, default: str | None) -> CheckpointQuantization:
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
