"""Mixtures of experts on a GPU: kernels at real sizes against the law, and texts of engines with and without graphs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

import expert_checks as checks  # noqa: E402
from checkpoints import write_tokenizer  # noqa: E402
from family_cases import write_family  # noqa: E402
from family_checks import prompt  # noqa: E402
from rig import Rig, Row  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from sgl.runtime import Engine, SamplingParams  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
FAMILIES = [
    "qwen3 moe",
    "qwen2 moe",
    "mixtral",
    "gpt-oss",
    "glm 4.5, groups",
    "llama 4",
    "phimoe",
    "granite moe, shared",
]
LENGTHS, NEW = (1, 3, 17, 40), 16


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", checks.ROUTERS)
@pytest.mark.parametrize("experts, top_k", [(8, 2), (128, 8), (384, 8), (20, 20)])
def test_choices(name: str, experts: int, top_k: int) -> None:
    checks.check_choice(name, 300, experts, top_k, "cuda")
    checks.check_broken_logits(name, "cuda")


def test_counts() -> None:
    checks.check_counts("cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "rows, count, hidden", [(1, 128, 2048), (8, 128, 2048), (9, 20, 70), (300, 256, 4096), (600, 32, 2880)]
)
def test_logits(rows: int, count: int, hidden: int, dtype: torch.dtype) -> None:
    checks.check_logits(rows, count, hidden, dtype, "cuda")


@pytest.mark.parametrize("name", checks.ROUTERS)
@pytest.mark.parametrize("rows, experts, hidden", [(1, 128, 2048), (8, 32, 2880), (5, 384, 7168), (2, 8, 10000)])
def test_few_rows_are_routed_by_one_kernel(name: str, rows: int, experts: int, hidden: int) -> None:
    for dtype in DTYPES:
        checks.check_few_rows(name, rows, experts, hidden, dtype, "cuda", dtype == torch.bfloat16)


@pytest.mark.parametrize(
    "tokens, top_k, experts, rows", [(1, 8, 128, 16), (64, 8, 128, 16), (3000, 8, 128, 128), (700, 4, 9, 32)]
)
def test_blocks(tokens: int, top_k: int, experts: int, rows: int) -> None:
    checks.check_blocks(tokens, top_k, experts, rows, "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", checks.PRODUCTS)
@pytest.mark.parametrize("rows", [1, 8, 9, 100, 700])
def test_mixtures(options: str, rows: int, dtype: torch.dtype) -> None:
    """A block has room for 16 to 128 rows."""
    checks.check_mixture(checks.PRODUCTS[options], rows, 16, 4, 272, 176, dtype, "cuda")
    if rows == 9:
        checks.check_mixture(checks.PRODUCTS[options], rows, 5, 2, 50, 27, dtype, "cuda")


@pytest.mark.parametrize(
    "experts, top_k, hidden, inner", [(128, 8, 2048, 768), (32, 4, 2880, 2880), (8, 2, 4096, 14336)]
)
def test_sizes_of_models(experts: int, top_k: int, hidden: int, inner: int) -> None:
    for rows in (1, 8, 64):
        checks.check_mixture({"bias": True}, rows, experts, top_k, hidden, inner, torch.bfloat16, "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [9, 300])
def test_what_is_not_added_up_yet(rows: int, dtype: torch.dtype) -> None:
    checks.check_spread(rows, 16, 4, 272, 176, dtype, "cuda")


@pytest.mark.parametrize("options", checks.PRODUCTS)
@pytest.mark.parametrize("rows, fixed", [(1, False), (8, False), (300, False), (6, True)])
def test_mixtures_of_which_some_experts_lie_elsewhere(options: str, rows: int, fixed: bool) -> None:
    checks.check_partial(checks.PRODUCTS[options], rows, 272, 176, torch.bfloat16, "cuda", fixed=fixed)


def test_many_pairs_of_which_some_experts_lie_elsewhere() -> None:
    """More than one program sorts."""
    checks.check_partial({}, 1500, 128, 64, torch.bfloat16, "cuda")


@pytest.mark.parametrize("seed", range(4))
def test_copies_take_turns(seed: int) -> None:
    checks.check_turns(seed, "cuda", 40 if seed % 2 else 5000)


@pytest.mark.parametrize("form", checks.FORMS)
@pytest.mark.parametrize("rows", [1, 8, 40, 700])
def test_mixtures_in_few_bits(form: str, rows: int) -> None:
    checks.check_in_few_bits(form, {"name": "silu"}, rows, 12, 4, 512, 384, torch.bfloat16, "cuda")
    checks.check_in_few_bits(
        form,
        {"name": "quick_gelu", "limit": 0.7, "bias": True, "of_input": rows == 8},
        rows,
        5,
        2,
        256,
        192,
        torch.float16,
        "cuda",
    )


def test_fixed_bits_in_few_bits_do_not_depend_on_the_batch() -> None:
    from test_quantized_kernels import draw

    from sgl.runtime.kernels.experts.fused_moe import (
        ExpertSelection,
        PackedExpertWeights,
        StackedExpertWeights,
        fused_moe,
    )
    from sgl.runtime.models.reference.stacked_experts import pack_together
    from sgl.runtime.quantization.gpu_quantized_linear import DeterministicGpuQuantizedLinear

    halves = [
        PackedExpertWeights(
            *pack_together(
                [
                    DeterministicGpuQuantizedLinear(
                        checks.placed(draw("zeros", *size, 64, seed), "cuda"), None, torch.bfloat16
                    )
                    for seed in range(8)
                ]
            )
        )
        for size in ((512, 512), (512, 256))
    ]
    x, stacks = torch.randn(500, 512, device="cuda").bfloat16(), StackedExpertWeights(*halves, "silu")
    weights, chosen = torch.randn(500, 8, device="cuda").softmax(1).topk(2)
    whole = fused_moe(x, stacks, ExpertSelection(chosen.int(), weights), fixed=True)
    for start, stop in ((0, 1), (3, 8), (100, 133), (499, 500)):
        part = slice(start, stop)
        assert torch.equal(
            fused_moe(x[part], stacks, ExpertSelection(chosen[part].int(), weights[part]), fixed=True), whole[part]
        )


@pytest.mark.parametrize("weights", ["int4", "mxfp4", "fp8_block", "int8"])
def test_an_engine_that_quantises_while_loading(weights: str, tmp_path: Path) -> None:
    """Its texts with and without graphs agree but for near ties; every layer by the kernels."""
    path = write_family("qwen3 moe", tmp_path, hidden_size=128, moe_intermediate_size=64, intermediate_size=128)
    write_tokenizer(path)
    prompts, found = [prompt(320, length, seed=length) for length in (5, 9, 30, 44)], []
    for graphs in (True, False):
        with Engine(path, device="cuda", dtype="bfloat16", weights=weights, graphs=graphs, kv_tokens=2048) as engine:
            assert {row["executor"] for row in engine.info()["layers"]} == {"fused"}
            found += [texts_of(engine, prompts) for _ in range(3)]
    agree = sum(
        a == b
        for texts in found[1:]
        for first, other in zip(found[0], texts, strict=True)
        for a, b in zip(first, other, strict=True)
    )
    assert agree > 0.5 * 5 * len(prompts) * NEW


def test_gpt_oss_in_mxfp4(tmp_path: Path) -> None:
    """As its checkpoint holds the experts; logits are those of the restored weights in float32 on the CPU.

    In float16: in bfloat16 the law itself is off by 0.22, where a rounding decides which expert is taken.
    """
    import layer_checks
    from family_checks import reference
    from test_experts import in_mxfp4

    from sgl.runtime.loading import load_model

    keys = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "sliding_window": 9,
        "intermediate_size": 64,
        "hidden_size": 128,
    }
    model = reference("GptOssForCausalLM", **keys)
    model.save_pretrained(tmp_path)
    in_mxfp4(tmp_path, model)
    exact = Rig(tmp_path, model=load_model(tmp_path, transform=lambda name, layer: layer), attention="torch_native")
    exact.model.step = None
    rig = layer_checks.FusedRig(tmp_path, torch.float16, device="cuda", attention="torch_native")
    assert (
        rig.model.execution_plan.whole and "MXFP4" in str(rig.model.few_bits[0]) and rig.model.few_bits[0].why is None
    )
    layer_checks.check_decoder(exact, rig, 0.03)


def test_fixed_bits_do_not_depend_on_the_batch() -> None:
    from sgl.runtime.kernels.experts.expert_routing import choose, logits
    from sgl.runtime.kernels.experts.fused_moe import ExpertSelection, fused_moe

    stacks = checks.stacks_of(32, 512, 256, torch.bfloat16, "cuda")
    x, router = torch.randn(900, 512, device="cuda").bfloat16(), torch.randn(32, 512, device="cuda")
    whole_logits = logits(x, router, fixed=True)
    chosen, weights = choose(whole_logits, 4)
    whole = fused_moe(x, stacks, ExpertSelection(chosen, weights), fixed=True)
    for start, stop in ((0, 1), (3, 8), (100, 133), (0, 500), (899, 900)):
        part = slice(start, stop)
        assert torch.equal(logits(x[part], router, fixed=True), whole_logits[part])
        assert torch.equal(
            fused_moe(x[part], stacks, ExpertSelection(chosen[part], weights[part]), fixed=True), whole[part]
        )


def texts_of(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(max_tokens=NEW, temperature=0, ignore_eos=True)
    sequences = [engine.open() for _ in prompts]
    for sequence, tokens in zip(sequences, prompts, strict=True):
        sequence.extend(tokens)
    futures = [sequence.generate(params) for sequence in sequences]
    return [future.result(120).token_ids for future in futures]


def texts_of_the_law(path: Path, prompts: list[list[int]]) -> list[list[int]]:
    rig, texts = Rig(path, attention="torch_native"), []
    rig.model.step = None
    known = Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab_size()
    for tokens in prompts:
        row = Row(tokens)
        for _ in range(NEW):
            row.tokens.append(int(rig.step([(row, row.pending)])[0, :known].argmax()))
        texts.append(row.tokens[len(tokens) :])
        rig.release(row)
    return texts


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = write_family(request.param, tmp_path)
    write_tokenizer(path)
    return path


def test_greedy_text_is_that_of_the_law(family: Path) -> None:
    """Cold and eager, then from the cache and as graphs, together and one by one; every layer by the kernels."""
    prompts = [prompt(320, length, seed=length) for length in LENGTHS]
    expected = texts_of_the_law(family, prompts)
    options: dict[str, Any]
    for options in ({}, {"graphs": False, "page_size": 16, "step_tokens": 16}):
        with Engine(family, device="cuda", dtype="float32", kv_tokens=2048, **options) as engine:
            assert {row["executor"] for row in engine.info()["layers"]} == {"fused"}
            for _ in range(3):
                assert texts_of(engine, prompts) == expected, options
            assert texts_of(engine, prompts[2:3]) == expected[2:3], options
            if not options:
                assert any(engine._core.runner._graphs._captured.values())


def test_texts_do_not_depend_on_the_batch_if_that_is_asked(tmp_path: Path) -> None:
    path = write_family("qwen3 moe", tmp_path, hidden_size=64, moe_intermediate_size=32)
    write_tokenizer(path)
    prompts = [prompt(320, length, seed=length) for length in (5, 9, 30, 44)]
    with Engine(path, device="cuda", dtype="bfloat16", deterministic=True, kv_tokens=2048) as engine:
        assert {row["executor"] for row in engine.info()["layers"]} == {"fused"}
        together = texts_of(engine, prompts)
        assert [texts_of(engine, [tokens])[0] for tokens in prompts] == together


def test_chosen_experts_are_counted(tmp_path: Path) -> None:
    """By eager steps and by graphs, whose padding does not count."""
    path = write_family("qwen3 moe", tmp_path)
    write_tokenizer(path)
    with Engine(path, device="cuda", dtype="bfloat16", kv_tokens=2048) as engine:
        for _ in range(4):
            engine.flush_cache()
            before = engine.stats()
            texts_of(engine, [prompt(320, 20, seed=seed) for seed in range(3)])
            spent = engine.stats() - before
            assert [sum(each) for each in spent.expert_counts[:-1]] == [2 * spent.computed_tokens] * 3


def test_weights_lie_once(tmp_path: Path) -> None:
    """Through loading, sleep and another load."""
    path = write_family("gpt-oss", tmp_path)
    write_tokenizer(path)
    prompts = [prompt(320, 7, seed=3)]
    with Engine(path, device="cuda", dtype="bfloat16", kv_tokens=2048) as engine:
        expected, part = texts_of(engine, prompts), engine._core.runner.model.layers[1].ffn
        assert len({expert.gate_up.weight.untyped_storage().data_ptr() for expert in part.experts}) == 1
        engine.sleep()
        engine.wake()
        assert texts_of(engine, prompts) == expected
        engine.update_weights(path)
        assert texts_of(engine, prompts) == expected
