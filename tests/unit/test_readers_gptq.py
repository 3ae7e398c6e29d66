"""GPTQ, AWQ and auto-round, against their formulas written out for each number, with
the words made by whole numbers of any length.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from readers_rig import NAME, Tensors, claimed, headers, read
from torch import Tensor

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.quantization.readers import WeightReaders

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that each nibble of a word belongs to


def signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def stream(codes: list[int], bits: int) -> list[int]:
    whole = sum(code << bits * i for i, code in enumerate(codes))
    return [signed(whole >> 32 * i & 0xFFFFFFFF) for i in range(-(-len(codes) * bits // 32))]


def along_inputs(codes: Tensor, bits: int) -> Tensor:
    """[in, out] -> int32 [in * bits / 32, out]."""
    return torch.tensor([stream(column, bits) for column in codes.T.tolist()], dtype=torch.int32).T.contiguous()


def along_outputs(codes: Tensor, bits: int) -> Tensor:
    return torch.tensor([stream(row, bits) for row in codes.tolist()], dtype=torch.int32)


def awq_words(codes: Tensor) -> Tensor:
    rows = []
    for row in codes.tolist():
        words = [sum(row[at + AWQ_ORDER[i]] << 4 * i for i in range(8)) for at in range(0, len(row), 8)]
        rows.append([signed(word) for word in words])
    return torch.tensor(rows, dtype=torch.int32)


def formula(codes: Tensor, scale: Tensor, zero: Tensor, groups: list[int]) -> Tensor:
    """codes [in, out], scale and zero [groups, out] -> [out, in]."""
    found = [(codes[i].float() - zero[g].float()) * scale[g].float() for i, g in enumerate(groups)]
    return torch.stack(found, 1)


class Drawn:
    """A GPTQ module and the weight that it stands for."""

    def __init__(self, seed: int) -> None:
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.bits, self.version = rng.choice([2, 3, 4, 8]), rng.choice(["gptq", "gptq_v2", None])
        group, self.out = rng.choice([32, 64, 128, -1]), 32 * rng.randint(1, 4)
        self.inputs = 32 * rng.randint(1, 3) if group == -1 else group * rng.randint(1, 4)
        count, top = self.inputs // (self.inputs if group == -1 else group), 2**self.bits
        codes = torch.randint(0, top, (self.inputs, self.out), generator=generator)
        self.symmetric = rng.random() < 0.4
        zero = torch.randint(0, top, (count, self.out), generator=generator)
        zero = torch.full_like(zero, top // 2) if self.symmetric else zero
        scale = torch.rand(zero.shape, generator=generator).half()
        groups = (torch.arange(self.inputs) // (self.inputs // count)).tolist()
        self.ordered = count > 1 and rng.random() < 0.5
        if self.ordered:
            rng.shuffle(groups)
        stored = zero if self.version == "gptq_v2" else (zero - 1) % top
        self.tensors: Tensors = {
            "qweight": along_inputs(codes, self.bits),
            "qzeros": along_outputs(stored, self.bits),
            "scales": scale,
            "bias": torch.zeros(self.out).half(),
        }
        if self.ordered or rng.random() < 0.5:
            self.tensors["g_idx"] = torch.tensor(groups, dtype=torch.int32)
        self.config: dict[str, Any] = {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": group,
            "sym": self.symmetric,
            "desc_act": self.ordered,
            "checkpoint_format": self.version,
        }
        self.dense = formula(codes, scale, zero, groups)


@pytest.mark.parametrize("seed", range(60))
def test_gptq(seed: int) -> None:
    drawn = Drawn(seed)
    found = read(drawn.config, drawn.tensors)
    assert torch.equal(found.dense(), drawn.dense)
    assert (found.order is not None) == drawn.ordered
    assert not drawn.symmetric or found.zero == float(2 ** (drawn.bits - 1))
    assert claimed(drawn.config, drawn.tensors).shape == (drawn.out, drawn.inputs)


@pytest.mark.parametrize("seed", range(12))
def test_layers_may_differ_from_the_configuration(seed: int) -> None:
    """As `dynamic` and `extra_config` say; the headers are enough with g_idx."""
    drawn = Drawn(seed)
    drawn.tensors.setdefault(
        "g_idx", (torch.arange(drawn.inputs) // (drawn.inputs // len(drawn.tensors["scales"]))).int()
    )
    config = {**drawn.config, "bits": 8 if drawn.bits == 4 else 4, "group_size": 16}
    assert torch.equal(read(config, drawn.tensors).dense(), drawn.dense)


def test_older_tools_say_it_in_a_file_of_their_own() -> None:
    drawn = Drawn(0)
    readers = WeightReaders.of(None, "config.json", {"quantize_config.json": {**drawn.config, "quant_method": None}})
    claim = readers.claim(NAME, headers(drawn.tensors))
    assert claim is not None and torch.equal(claim.read(drawn.tensors).dense(), drawn.dense)


def test_a_symmetric_file_of_version_2_that_does_not_say_so() -> None:
    codes, half = torch.randint(0, 16, (64, 32)), torch.full((2, 32), 8)
    tensors = {"qweight": along_inputs(codes, 4), "qzeros": along_outputs(half, 4), "scales": torch.ones(2, 32).half()}
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    assert torch.equal(read({**config, "sym": True}, tensors).dense(), codes.T.float() - 8)
    assert torch.equal(read({**config, "sym": False}, tensors).dense(), codes.T.float() - 9)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("method", ["awq", "auto-round"])
def test_awq(seed: int, method: str) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    group, out = rng.choice([32, 64, 128]), 8 * rng.randint(1, 9)
    inputs = group * rng.randint(1, 4)
    codes = torch.randint(0, 16, (inputs, out), generator=generator)
    zero = torch.randint(0, 16, (inputs // group, out), generator=generator)
    scale = torch.rand(zero.shape, generator=generator).half()
    config: dict[str, Any] = {
        "quant_method": "awq",
        "w_bit": 4,
        "q_group_size": group,
        "version": "gemm",
        "zero_point": True,
    }
    if method == "auto-round":
        config = {"quant_method": method, "bits": 4, "group_size": group, "packing_format": "auto_round:auto_awq"}
    tensors = {"qweight": awq_words(codes), "qzeros": awq_words(zero), "scales": scale}
    assert torch.equal(read(config, tensors).dense(), formula(codes, scale, zero, [i // group for i in range(inputs)]))
    assert (
        claimed(config, tensors).format
        == f"AWQ, 4 bits, {f'groups of {group}' if group < inputs else 'a scale per output'}"
    )


@pytest.mark.parametrize(
    "keys, tensors, form",
    [
        (
            {"data_type": "mx_fp", "bits": 4, "group_size": 32, "packing_format": "auto_round:llm_compressor"},
            {"weight_packed": torch.zeros(8, 32).byte(), "weight_scale": torch.full((8, 2), 127).byte()},
            "MXFP4, groups of 32",
        ),
        (
            {"data_type": "mx_fp", "bits": 8, "group_size": 32, "packing_format": "auto_round:llm_compressor"},
            {"weight": torch.zeros(8, 64).to(torch.float8_e4m3fn), "weight_scale": torch.full((8, 2), 127).byte()},
            "FP8, groups of 32",
        ),
        (
            {
                "data_type": "nv_fp",
                "bits": 4,
                "group_size": 16,
                "act_bits": 4,
                "packing_format": "auto_round:llm_compressor",
            },
            {
                "weight_packed": torch.zeros(8, 32).byte(),
                "weight_scale": torch.ones(8, 4).to(torch.float8_e4m3fn),
                "weight_global_scale": torch.ones(1),
                "input_global_scale": torch.ones(1),
            },
            "NVFP4, groups of 16",
        ),
        (
            {
                "data_type": "fp",
                "bits": 8,
                "fmt": "e4m3",
                "group_size": -1,
                "act_bits": 8,
                "packing_format": "auto_round:fp8_static",
            },
            {
                "weight": torch.zeros(8, 64).to(torch.float8_e4m3fn),
                "weight_scale": torch.ones(8).bfloat16(),
                "input_scale": torch.ones(1).bfloat16(),
            },
            "FP8, a scale per output",
        ),
        (
            {"data_type": "fp", "bits": 8, "group_size": [128, 128], "packing_format": "auto_round:fp8"},
            {"weight": torch.zeros(256, 128).to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(2, 1).bfloat16()},
            "FP8, blocks of 128 x 128",
        ),
    ],
)
def test_auto_round_of_floats_is_what_other_formats_are(keys: dict[str, Any], tensors: Tensors, form: str) -> None:
    config = {"quant_method": "auto-round", **keys}
    assert claimed(config, tensors).format == form and len(WeightReaders.of(config, "x").notes) == ("act_bits" in keys)


def test_auto_round_in_the_packing_of_gptq() -> None:
    drawn = Drawn(5)
    config = {
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_gptq",
        **{key: drawn.config[key] for key in ("bits", "group_size", "sym", "checkpoint_format")},
    }
    assert torch.equal(read(config, drawn.tensors).dense(), drawn.dense)
    assert WeightReaders.of({**config, "act_bits": 8}, "config.json").notes == (
        "act_bits 8: activations are not rounded: the weights alone are read in few bits",
    )


def test_a_known_word_of_each() -> None:
    """The layouts as published: 0x76543210 is outputs 0 2 4 6 1 3 5 7 for AWQ, inputs 0 to 7 for GPTQ."""
    word = torch.tensor([[0x76543210]], dtype=torch.int32)
    awq = read({"quant_method": "awq"}, {"qweight": word, "qzeros": word * 0, "scales": torch.ones(1, 8).half()})
    assert awq.dense()[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    zeros = torch.full((1, 1), signed(0x77777777), dtype=torch.int32)
    gptq = read(
        {"quant_method": "gptq", "bits": 4},
        {"qweight": word.expand(1, 8), "qzeros": zeros, "scales": torch.ones(1, 8).half()},
    )
    assert gptq.dense()[0].tolist() == [-8, -7, -6, -5, -4, -3, -2, -1]


GOOD = {
    "qweight": torch.zeros(8, 32).int(),
    "qzeros": torch.zeros(2, 4).int(),
    "scales": torch.ones(2, 32).half(),
    "g_idx": torch.zeros(64).int(),
}
FOUR = {"quant_method": "gptq", "bits": 4, "group_size": 32}


@pytest.mark.parametrize(
    "tensors, message",
    [
        (GOOD, r"g_idx \(I32 \[64\]\) puts inputs in groups that are not of 32 each"),
        ({**GOOD, "g_idx": torch.arange(64).int() // 32 * 1000}, "g_idx .* groups of unequal length"),
        ({**GOOD, "g_idx": torch.zeros(63).int()}, "qweight .* and qzeros of 4 words fit no weight"),
        ({**GOOD, "qzeros": torch.zeros(2, 5).int()}, "and qzeros of 5 words fit no weight of"),
        ({**GOOD, "qzeros": torch.zeros(3, 4).int()}, r"qzeros .* must have shape \[2, 4\]"),
        (
            {**GOOD, "scales": torch.ones(3, 32).half()},
            "scales .* cut 64 inputs in no whole groups, and group_size is 32",
        ),
        ({**GOOD, "scales": torch.ones(2, 31).half()}, r"scales .* must have shape \[2, 32\]"),
        ({**GOOD, "qweight": torch.zeros(8, 32).long()}, r"qweight \(I64 \[8, 32\]\) must be I32"),
        ({**GOOD, "g_idx": torch.zeros(64).half()}, "g_idx .* must be I32 or I64"),
        ({**GOOD, "g_idx": torch.tensor(3)}, "g_idx"),
        ({**GOOD, "B": torch.zeros(2)}, "B .* is not understood"),
        ({"qweight": GOOD["qweight"]}, "qweight .* belongs to no format"),
        (
            {"qweight": torch.zeros(64, 4).int(), "qzeros": torch.zeros(2, 5).int(), "scales": torch.ones(2, 32)},
            r"qzeros .* must have shape \[2, 4\]",
        ),
        (
            {"qweight": torch.zeros(0, 4).int(), "qzeros": torch.zeros(2, 4).int(), "scales": torch.ones(2, 32)},
            "qweight .* must be a matrix",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_the_tensor(tensors: Tensors, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(FOUR, tensors)


@pytest.mark.parametrize(
    "config, message",
    [
        ({**FOUR, "bits": 0}, "'bits' is 0: it must be a whole number of 1 to 8"),
        ({**FOUR, "bits": "4"}, "'bits' is '4'"),
        ({**FOUR, "group_size": 2**33}, "'group_size' is 8589934592"),
        ({**FOUR, "group_size": 0}, "'group_size' is 0"),
        ({**FOUR, "checkpoint_format": "marlin"}, "'checkpoint_format' is 'marlin': this layout is not read"),
        ({**FOUR, "format": "gptq_p"}, "'format' is 'gptq_p'"),
        ({**FOUR, "is_marlin_format": True}, "'is_marlin_format' is True: repacked"),
        ({**FOUR, "rotation": "hadamard"}, "'rotation' is 'hadamard': it is not computed"),
        ({**FOUR, "pack_dtype": "int16"}, "'pack_dtype' is 'int16'"),
        ({"quant_method": "awq", "version": "gemv_fast"}, "'version' is 'gemv_fast': only the version gemm"),
        ({"quant_method": "awq", "w_bit": 3}, "'w_bit' is 3: AWQ is read in 4 bits"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel"}, "'packing_format' is .* known ones"),
        ({"quant_method": "auto-round", "data_type": "mx_int"}, "'data_type' is 'mx_int': .* known ones: int, fp"),
        ({"quant_method": "auto-round", "data_type": "nvfp4_v2"}, "'data_type' is 'nvfp4_v2'"),
        ({"quant_method": "auto-round", "data_type": "fp", "fmt": "e5m2"}, "'fmt' is 'e5m2'"),
        (
            {"quant_method": "aqlm"},
            "'quant_method' is 'aqlm': checkpoints of this kind are not read; take the unquantised checkpoint, or "
            "one of these: fp8",
        ),
        ({"quant_method": "gtpq"}, r"'gtpq': checkpoints of this kind are not read; did you mean 'gptq'\?"),
        ({"quant_method": 4}, "'quant_method' is 4: it must name the method"),
        ({"strange": 1}, "'quant_method' is None"),
    ],
)
def test_what_a_configuration_asks_and_is_not_done_is_refused_by_the_key(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WeightReaders.of(config, "config.json")
