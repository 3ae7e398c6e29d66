"""Random damage to headers, contents and configurations: a clear error, or a weight of the size that the claim told."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
import torch
from readers_rig import NAME, Tensors, headers, read_or_refused
from torch import Tensor

from sgl.runtime.errors import ConfigError
from sgl.runtime.quantization.readers import TensorHeader, WeightReaders
from sgl.runtime.quantization.readers.quantization_methods import METHODS, REFUSED

PACKED = {
    "config_groups": {
        "a": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
    }
}
GPTQ, AWQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}, {"quant_method": "awq", "bits": 4, "group_size": 32}


def whole(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


STATE = torch.tensor(
    list(json.dumps({"blocksize": 64, "shape": [32, 64], "nested_blocksize": 256, "nested_offset": 0.5}).encode()),
    dtype=torch.uint8,
)
GOOD: list[tuple[dict[str, Any] | None, Tensors]] = [
    (None, {"weight": torch.ones(32, 64).to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(1, 1)}),
    (
        PACKED,
        {
            "weight_packed": whole(32, 8),
            "weight_scale": torch.ones(32, 2),
            "weight_zero_point": whole(4, 2),
            "weight_g_idx": torch.arange(64) // 32,
        },
    ),
    (
        None,
        {
            "weight_packed": whole(32, 32, dtype=torch.uint8),
            "weight_scale": torch.ones(32, 4).to(torch.float8_e4m3fn),
            "weight_global_scale": torch.ones(1),
        },
    ),
    (None, {"weight_packed": whole(32, 48, dtype=torch.uint8), "weight_scale": whole(32, 2, dtype=torch.uint8)}),
    (
        None,
        {
            "weight": whole(32, 64, dtype=torch.int8),
            "weight_scale": torch.ones(32, 1),
            "weight_zero_point": whole(32, 1, dtype=torch.int8),
        },
    ),
    (None, {"weight": whole(32, 64, dtype=torch.int8), "SCB": torch.ones(32)}),
    (
        GPTQ,
        {"qweight": whole(8, 32), "qzeros": whole(2, 4), "scales": torch.ones(2, 32), "g_idx": torch.arange(64) // 32},
    ),
    (AWQ, {"qweight": whole(64, 4), "qzeros": whole(2, 4), "scales": torch.ones(2, 32)}),
    (
        None,
        {
            "weight": whole(1024, 1, dtype=torch.uint8),
            "weight.absmax": whole(32, dtype=torch.uint8),
            "weight.quant_map": torch.ones(16),
            "weight.nested_absmax": torch.ones(1),
            "weight.nested_quant_map": torch.ones(256),
            "weight.quant_state.bitsandbytes__nf4": STATE,
        },
    ),
    (
        None,
        {
            "W_q": whole(16, 64, dtype=torch.uint8),
            "scale": torch.ones(32, 1),
            "zero": torch.ones(32, 1),
            "shape": torch.tensor([32, 64]),
        },
    ),
    (None, {"_weight_qdata": whole(32, 64, dtype=torch.int8), "_weight_scale": torch.ones(32, 1)}),
]


@pytest.mark.parametrize("at", range(len(GOOD)))
def test_damaged_modules_are_read_or_refused(at: int) -> None:
    config, good = GOOD[at]
    readers, rng = WeightReaders.of(config, "config.json"), random.Random(at)
    read_or_refused(rng, ((readers, good) for _ in range(300)))


def test_headers_that_promise_more_than_there_is_take_no_memory() -> None:
    """A claim looks at numbers only: sizes of any magnitude cost nothing before the loader has found their bytes."""
    huge = 2**40
    readers = WeightReaders.of(GPTQ, "config.json")
    claim = readers.claim(
        NAME,
        {
            "qweight": TensorHeader("I32", (huge // 8, 32)),
            "qzeros": TensorHeader("I32", (huge // 32, 4)),
            "scales": TensorHeader("F16", (huge // 32, 32)),
        },
    )
    assert claim is not None and claim.shape == (32, huge)


def wild(rng: random.Random, depth: int = 0) -> Any:
    kinds = [None, True, 0, -1, 4, 2**70, 1.5, "", "gptq", "re:(", [], {}]
    if depth < 3 and rng.random() < 0.4:
        return (
            [wild(rng, depth + 1) for _ in range(2)]
            if rng.random() < 0.5
            else {"weights": wild(rng, depth + 1), "num_bits": wild(rng, depth + 1)}
        )
    return rng.choice(kinds)


KEYS = (
    "global_quant_config",
    "layer_quant_config",
    "export",
    "algo_config",
    "bits",
    "group_size",
    "sym",
    "config_groups",
    "format",
    "weight_block_size",
    "sparsity_config",
    "quant_algo",
    "act_bits",
    "version",
    "fmt",
    "quant_type",
    "quantization",
)


def test_configurations_of_any_values_are_read_or_refused() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        config = {key: wild(rng) for key in rng.sample(KEYS, rng.randint(1, 5))}
        config["quant_method"] = rng.choice([*METHODS, wild(rng)])
        try:
            readers = WeightReaders.of(config, "config.json")
            readers.claim(NAME, headers(GOOD[1][1]))
        except ConfigError as error:
            assert len(str(error)) < 600


@pytest.mark.parametrize("method", REFUSED)
def test_methods_that_are_not_read_are_refused_by_name(method: str) -> None:
    with pytest.raises(
        ConfigError,
        match=re.escape(
            f"config.json: quantization key 'quant_method' is '{method}': checkpoints of this kind are not read; "
            "take the unquantised"
        ),
    ):
        WeightReaders.of({"quant_method": method}, "config.json")


@pytest.mark.parametrize("value", ["fp8", [1], 3])
def test_a_quantisation_that_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="it must be an object"):
        WeightReaders.of(value, "config.json")


def test_where_modelopt_says_it() -> None:
    inner = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    for readers in (
        WeightReaders.of({"quant_method": "modelopt", "quantization": inner}, "config.json"),
        WeightReaders.of(None, "config.json", {"hf_quant_config.json": {"producer": {}, "quantization": inner}}),
        WeightReaders.of(inner, "config.json"),
    ):
        assert readers.notes == (
            "quant_algo 'FP8': activations are not rounded: the weights alone are read in few bits",
        )
    with pytest.raises(
        ConfigError, match="'quant_algo' is 'NVFP4_SVD': this algorithm is not read; take the unquantised"
    ):
        WeightReaders.of({"quant_method": "modelopt", "quant_algo": "NVFP4_SVD"}, "config.json")
