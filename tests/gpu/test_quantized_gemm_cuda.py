"""Weights of four and eight bits on a GPU, against the definition; engines that are made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DEVICE = torch.device("cuda")
FORMS = (
    "plain",
    "zeros",
    "broken zeros",
    "offset",
    "offset, factor",
    "floats",
    "table",
    "fine table",
    "table, zero",
    "order",
    "bytes",
    "byte zeros",
    "float8",
)


def on_gpu(weight):
    from dataclasses import fields, replace

    parts = {field.name: getattr(weight, field.name) for field in fields(weight)}
    return replace(weight, **{name: part.to(DEVICE) for name, part in parts.items() if isinstance(part, torch.Tensor)})


def check(form: str, outputs: int, inputs: int, group: int, rows: int, dtype: torch.dtype, fixed: bool = False) -> None:
    from test_quantized_kernels import draw

    from sgl.runtime.quantization.gpu_quantized_linear import DeterministicGpuQuantizedLinear, GpuQuantizedLinear

    weight = on_gpu(draw(form, outputs, inputs, group))
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(rows, inputs, generator=generator, device=DEVICE).to(dtype)
    bias = torch.randn(outputs, generator=generator, device=DEVICE).to(dtype)
    dense = weight.dense().double()
    expected, size = x.double() @ dense.T + bias.double(), x.double().abs() @ dense.abs().T
    found = (DeterministicGpuQuantizedLinear if fixed else GpuQuantizedLinear)(weight, bias, dtype)(x)
    step = torch.finfo(dtype).eps
    assert ((found.double() - expected).abs() <= step * (expected.abs() + size / 2)).all()


@pytest.mark.parametrize("rows", [1, 5, 64, 100, 1100])
@pytest.mark.parametrize("group", [16, 32, 64, 128, 2**20])
@pytest.mark.parametrize("form", FORMS)
def test_each_form(form: str, group: int, rows: int) -> None:
    check(form, 1032, 1040, group, rows, torch.bfloat16)


@pytest.mark.parametrize("form", ["zeros", "floats", "fine table", "float8", "bytes"])
def test_float16(form: str) -> None:
    check(form, 512, 512, 32, 17, torch.float16)


@pytest.mark.parametrize("rows", [1, 16, 37, 256])
@pytest.mark.parametrize("outputs, inputs", [(6144, 4096), (4096, 14336), (28672, 4096)])
def test_sizes_of_a_model(outputs: int, inputs: int, rows: int) -> None:
    check("zeros", outputs, inputs, 64, rows, torch.bfloat16)


def test_fixed_sums_do_not_depend_on_the_batch() -> None:
    from test_quantized_kernels import draw

    from sgl.runtime.quantization.gpu_quantized_linear import DeterministicGpuQuantizedLinear

    layer = DeterministicGpuQuantizedLinear(on_gpu(draw("zeros", 1536, 2048, 64)), None, torch.bfloat16)
    x = torch.randn(600, 2048, device=DEVICE).bfloat16()
    whole = layer(x)
    for rows in (1, 3, 16, 40, 64, 65, 256, 300):
        assert torch.equal(layer(x[:rows]), whole[:rows]), rows
    assert torch.equal(layer(x[250:260]), whole[250:260])


@pytest.mark.parametrize("weights", ["int4", "int8", "int4_hqq", "int4_gptq", "nvfp4", "mxfp4", "fp8_block"])
def test_an_engine_that_quantises_while_loading(weights: str, tmp_path: Path) -> None:
    """Its texts are those of the same weights restored; graphs, chunks and many sequences as ever."""
    from checkpoints import write_checkpoint

    from sgl.runtime import Engine, SamplingParams

    path = write_checkpoint(tmp_path, num_hidden_layers=2, tokenizer=True)
    prompts = [f"{i} a prompt of some words" for i in range(70)]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    calibration = prompts if weights == "int4_gptq" else None
    with Engine(path, device="cuda", dtype="bfloat16", weights=weights, calibration=calibration) as engine:
        one = [engine.generate(prompt, params).token_ids for prompt in prompts[:3]]
        many = [result.token_ids for result in engine.generate(prompts, params)]
        told = {product["name"]: product for product in engine.info()["products"]}
    assert all(len(tokens) == 12 for tokens in many)
    assert told["qkv"]["count"] == 2 and "gemm" in told["qkv"]["few_rows"] and told["head"]["weight"]
    agree = sum(a == b for first, other in zip(one, many, strict=False) for a, b in zip(first, other, strict=True))
    assert agree >= 18  # of 36; near ties part


@pytest.mark.parametrize("float8", [False, True])
def test_a_decoder_of_few_rows(float8: bool, tmp_path: Path) -> None:
    """Logits of single rows, few rows and many are those of the restored weights in float32 on the CPU."""
    import layer_checks as checks
    from checkpoints import write_checkpoint
    from rig import Rig

    from sgl.runtime.layers.linear_layers import Linear
    from sgl.runtime.quantization.fp8_linear import Fp8Linear
    from sgl.runtime.quantization.gpu_quantized_linear import GpuQuantizedLinear
    from sgl.runtime.quantization.weight_rounding import nearest

    path = write_checkpoint(tmp_path, num_hidden_layers=2)
    exact = Rig(path)
    exact.model.step = None
    rig = checks.FusedRig(path, torch.bfloat16, device="cuda", attention="torch_native")
    pairs = [
        pair
        for one, other in zip(rig.model.layers, exact.model.layers, strict=True)
        for pair in zip(one.products(), other.products(), strict=True)
    ]
    pairs += [] if float8 else [((rig.model.head, "product"), (exact.model.head, "product"))]
    for (holder, name), (same, _) in pairs:
        found = getattr(same, name)
        plain, bias = checks.loaded_weight(found), None if found.bias is None else found.bias.bfloat16().cuda()
        if float8:
            few = Fp8Linear.of(Linear(plain.cuda(), bias))
            dense = (few.weight.float() * few.scale[:, None]).cpu()
        else:
            weight = nearest(plain, 16)
            few, dense = GpuQuantizedLinear(on_gpu(weight), bias, torch.bfloat16), weight.dense()
        setattr(holder, name, few)
        setattr(same, name, Linear(dense, found.bias))
    vars(rig.model).pop("execution_plan", None)
    assert rig.model.execution_plan.few is not None
    checks.check_decoder(exact, rig, 0.05)


@pytest.mark.parametrize("weights", ["int4", "nvfp4", "int8"])
def test_a_text_does_not_depend_on_the_batch(weights: str, tmp_path: Path) -> None:
    """deterministic=True with strict=True: fixed sums are no slower way of something else."""
    from checkpoints import write_checkpoint

    from sgl.runtime import Engine, SamplingParams

    path = write_checkpoint(tmp_path, num_hidden_layers=2, tokenizer=True)
    prompts = [f"{i} a prompt of some words" * (1 + i % 3) for i in range(90)]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    with Engine(path, device="cuda", dtype="bfloat16", weights=weights, deterministic=True, strict=True) as engine:
        many = [result.token_ids for result in engine.generate(prompts, params)]
        few = [result.token_ids for result in engine.generate(prompts[:5], params)]
        one = [engine.generate(prompt, params).token_ids for prompt in prompts[:5]]
    assert one == few == many[:5]


@pytest.mark.parametrize("name", ["nf4", "awq", "fp8 outputs", "fp8 blocks", "int8"])
def test_a_checkpoint_in_few_bits(name: str, tmp_path: Path) -> None:
    """Kept as codes, and the logits of the restored twin on the CPU."""
    from layer_checks import FusedRig
    from rig import Rig, Row
    from test_quantized_loading import FORMATS, write

    few, whole = write(tmp_path, *FORMATS[name])
    rig, exact = FusedRig(few, torch.bfloat16, device="cuda", attention="torch_native"), Rig(whole)
    assert all(kept.why is None for kept in rig.model.few_bits), rig.model.few_bits
    for count in (1, 5, 100):
        tokens = [4 + (7 * at) % 50 for at in range(count)]
        found, expected = (each.step([(Row(list(tokens)), count)])[0].float().cpu() for each in (rig, exact))
        assert (found - expected).norm() < (
            0.05 if count < 100 else 0.15
        ) * expected.norm()  # many rows may be rounded to eight bits


def test_pieces_of_different_forms_stay_in_few_bits() -> None:
    from test_quantized_kernels import draw

    from sgl.runtime.layers.linear_layers import Linear
    from sgl.runtime.quantization.fused_quantized_weight import FusedQuantizedWeight, QuantizedPiece
    from sgl.runtime.quantization.quantized_transform import keep_quantized

    weights = [on_gpu(draw("zeros", 64, 256, 64)), on_gpu(draw("byte zeros", 32, 256, 16))]
    codes = FusedQuantizedWeight([QuantizedPiece(0, "one", weights[0]), QuantizedPiece(64, "other", weights[1])])
    layer = keep_quantized(codes, Linear(torch.empty(96, 256, dtype=torch.bfloat16, device=DEVICE)))
    assert isinstance(layer, Linear), layer
    x = torch.randn(5, 256, device=DEVICE).bfloat16()
    dense = torch.cat([weight.dense() for weight in weights])
    size = x.float().abs() @ dense.abs().T
    assert ((layer(x).float() - x.float() @ dense.T).abs() <= 2**-7 * size).all()
