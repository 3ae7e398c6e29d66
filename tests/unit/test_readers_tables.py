"""bitsandbytes, HQQ, and scales of keys and values: against their formulas number by number, and their own packages."""

from __future__ import annotations

import json
import random

import pytest
import torch
from readers_rig import NAME, Tensors, claimed, headers, read
from torch import Tensor

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.quantization.readers import WeightReaders
from sgl.runtime.quantization.readers.kv_scale_reader import kv_scales

STATE = "weight.quant_state.bitsandbytes__nf4"


def said(keys: object) -> Tensor:
    return torch.tensor(list(json.dumps(keys).encode()), dtype=torch.uint8)


def four_bits(seed: int, nested: bool) -> tuple[Tensors, Tensor]:
    """A module of bitsandbytes and its dense weight; rows are often no multiple of the blocks."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    out, inputs, block = rng.randint(2, 20), 8 * rng.choice([8, 12, 16, 5, 64]), rng.choice([64, 128])
    count = out * inputs
    codes, table = torch.randint(0, 16, (count,), generator=generator), torch.randn(16, generator=generator)
    blocks, state = (
        -(-count // block),
        {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": [out, inputs]},
    )
    absmax = torch.rand(blocks, generator=generator)
    tensors: Tensors = {
        "weight": (codes[::2] << 4 | codes[1::2]).byte()[:, None],
        "weight.absmax": absmax,
        "weight.quant_map": table,
    }
    if nested:
        kept, outer, inner = (
            torch.randint(0, 256, (blocks,), generator=generator),
            torch.rand(-(-blocks // 4), generator=generator),
            torch.randn(256),
        )
        tensors |= {"weight.absmax": kept.byte(), "weight.nested_absmax": outer, "weight.nested_quant_map": inner}
        state |= {"nested_blocksize": 4, "nested_dtype": "float32", "nested_offset": 0.25}
        absmax = torch.stack([inner[int(code)] * outer[i // 4] + 0.25 for i, code in enumerate(kept)])
    dense = torch.stack([table[int(code)] * absmax[i // block] for i, code in enumerate(codes)])
    return {**tensors, STATE: said(state)}, dense.view(out, inputs)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("nested", [False, True])
def test_four_bits_with_a_table(seed: int, nested: bool) -> None:
    tensors, dense = four_bits(seed, nested)
    assert torch.equal(read({"quant_method": "bitsandbytes"}, tensors).dense(), dense)
    assert claimed(None, tensors).shape == (1, dense.numel())


@pytest.mark.parametrize("storage", [torch.int8, torch.float32, torch.bfloat16, torch.float16])
def test_the_bytes_may_be_stored_under_another_dtype(storage: torch.dtype) -> None:
    tensors, dense = four_bits(3, True)
    stored = tensors["weight"].view(-1).view(storage)[:, None]
    assert torch.equal(read(None, {**tensors, "weight": stored}).dense(), dense)


def test_int8_of_bitsandbytes() -> None:
    q, scale = torch.randint(-127, 128, (12, 40)).char(), torch.rand(12)
    tensors = {"weight": q, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    assert torch.equal(read(None, tensors).dense(), q.float() * (scale / 127)[:, None])
    assert claimed(None, tensors).unused == ("weight_format",)
    assert WeightReaders.of({"quant_method": "bitsandbytes", "load_in_8bit": True}, "config.json").notes == (
        "load_in_8bit: activations are not rounded: the weights alone are read in few bits",
    )


TENSORS, DENSE = four_bits(1, True)
OUT, INPUTS = DENSE.shape
GOOD_STATE = json.loads(bytes(TENSORS[STATE].tolist()))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({STATE: said({**GOOD_STATE, "shape": [OUT + 1, INPUTS]})}, r"nf4 .* says shape \["),
        ({STATE: said({**GOOD_STATE, "shape": [-OUT, -INPUTS]})}, "says shape"),
        ({STATE: said({**GOOD_STATE, "shape": "wide"})}, "says shape 'wide'"),
        ({STATE: said({**GOOD_STATE, "blocksize": 2**70})}, "says blocksize"),
        ({STATE: said({**GOOD_STATE, "blocksize": 0})}, "says blocksize 0, which cannot be"),
        ({STATE: said({**GOOD_STATE, "nested_blocksize": 1})}, "says nested_blocksize 1"),
        ({STATE: said({**GOOD_STATE, "nested_offset": None})}, "says nested_offset None"),
        ({STATE: said([])}, r"says  \[\]"),
        ({STATE: said({})[:-1]}, "is no JSON"),
        ({STATE: torch.full((4000,), ord("["), dtype=torch.uint8)}, "is no JSON"),
        ({STATE: torch.zeros(5000).byte()}, r"nf4 \(U8 \[5000\]\) goes with no weight"),
        ({"weight.absmax": torch.zeros(10**5).byte()}, "absmax .* goes with no weight"),
        ({"weight.quant_map": torch.zeros(15)}, r"quant_map .* must have shape \[16\]"),
        ({"weight.nested_quant_map": torch.zeros(16)}, r"nested_quant_map .* must have shape \[256\]"),
        ({"weight": torch.zeros(4).double()}, "weight .* must be U8"),
        ({"weight.more": torch.zeros(4)}, "weight.more .* is not understood"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_tensor(changed: Tensors, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(None, {**TENSORS, **changed})


def test_rows_that_cut_blocks_too_small_are_refused() -> None:
    state = {"quant_type": "nf4", "blocksize": 64, "shape": [64, 65]}
    tensors = {
        "weight": torch.zeros(32 * 65, 1).byte(),
        "weight.absmax": torch.ones(65),
        "weight.quant_map": torch.zeros(16),
        STATE: said(state),
    }
    with pytest.raises(CheckpointError, match="rows of 65 in blocks of 64, which cut them in groups of 1: too small"):
        read(None, tensors)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("block", [64, 256])
def test_what_bitsandbytes_writes(kind: str, nested: bool, block: int) -> None:
    pytest.importorskip("bitsandbytes")
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    weight = torch.randn(96, 256, generator=torch.Generator().manual_seed(block))
    packed, state = quantize_4bit(weight, quant_type=kind, compress_statistics=nested, blocksize=block)
    tensors = {"weight": packed, **{f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}}
    assert torch.allclose(read(None, tensors).dense(), dequantize_4bit(packed, state), rtol=3e-7, atol=0)
    assert claimed(None, tensors).format.startswith(f"bitsandbytes, {kind}")


def hqq(seed: int) -> tuple[Tensors, Tensor]:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    bits, out, group = rng.choice([1, 2, 4, 8]), 8 * rng.randint(1, 4), rng.choice([16, 64])
    inputs = group * rng.randint(1, 3)
    groups, parts = out * inputs // group, 8 // bits
    codes = torch.randint(0, 2**bits, (groups, group), generator=generator)
    scale, zero = (
        torch.rand(groups, 1, generator=generator).half(),
        (torch.rand(groups, 1, generator=generator) * 2**bits).half(),
    )
    rows = groups // parts
    filled = torch.zeros(rows, group, dtype=torch.long)
    for row in range(groups):
        filled[row % rows] |= codes[row] << (8 - bits * (row // rows + 1))
    dense = torch.stack([(codes[row].float() - zero[row].float()) * scale[row].float() for row in range(groups)])
    tensors = {
        "W_q": filled.byte(),
        "scale": scale,
        "zero": zero,
        "shape": torch.tensor([out, inputs]),
        "nbits": torch.tensor(bits),
    }
    return tensors, dense.view(out, inputs)


@pytest.mark.parametrize("seed", range(20))
def test_hqq(seed: int) -> None:
    tensors, dense = hqq(seed)
    assert torch.equal(read({"quant_method": "hqq"}, tensors).dense(), dense)


def test_hqq_that_does_not_fit_is_refused() -> None:
    tensors, _ = hqq(0)
    with pytest.raises(CheckpointError, match=r"scale \(F16 \[1, 64\]\) is not one for each group of .* only axis=1"):
        read(None, {**tensors, "scale": torch.ones(1, 64).half()})
    with pytest.raises(CheckpointError, match=r"shape \(I64 \[2\]\) says \[3, 5\], which"):
        read(None, {**tensors, "shape": torch.tensor([3, 5])})
    with pytest.raises(CheckpointError, match="shape is missing next to"):
        read(None, {name: tensor for name, tensor in tensors.items() if name != "shape"})


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_what_hqq_writes(bits: int) -> None:
    quantize = pytest.importorskip("hqq.core.quantize")
    layer = torch.nn.Linear(128, 64, bias=True)
    config = quantize.BaseQuantizeConfig(nbits=bits, group_size=64, axis=1)
    made = quantize.HQQLinear(layer, config, compute_dtype=torch.float32, device="cpu")
    tensors = {name: tensor for name, tensor in made.state_dict().items() if isinstance(tensor, Tensor)}
    assert torch.allclose(read(None, tensors).dense(), made.dequantize(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "names", [("k_scale", "v_scale"), ("k_proj.k_scale", "v_proj.v_scale"), ("kv_scale", "kv_scale")]
)
def test_scales_of_keys_and_values(names: tuple[str, str]) -> None:
    module = NAME.removesuffix(".q_proj")
    there = {**headers({name: torch.ones(1) for name in names}), **headers({"q_proj.weight": torch.ones(1, 1)})}
    assert kv_scales(module, there) == names
    assert kv_scales(module, headers({"q_proj.weight": torch.ones(1, 1)})) is None
    with pytest.raises(CheckpointError, match="holds several scales"):
        kv_scales(module, headers({name: torch.ones(8) for name in names}))


def test_methods_that_only_the_headers_tell_and_wrong_tables() -> None:
    assert (
        WeightReaders.of({"quant_method": "hqq"}, "config.json").notes
        == WeightReaders.of(None, "config.json").notes
        == ()
    )
    with pytest.raises(ConfigError, match="'bnb_4bit_quant_type' is 'int4': known ones: nf4, fp4"):
        WeightReaders.of({"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "int4"}, "config.json")
