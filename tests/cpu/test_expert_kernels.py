"""The kernels of mixtures of experts in Triton's interpreter, against the law."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

import expert_checks as checks
from interpreted import products_as_on_a_tensor_core

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", checks.ROUTERS)
@pytest.mark.parametrize("experts, top_k", [(8, 3), (12, 1), (20, 20)])
def test_choices(name: str, experts: int, top_k: int) -> None:
    checks.check_choice(name, 20, experts, top_k, "cpu")


@pytest.mark.parametrize("name", checks.ROUTERS)
def test_choices_of_rows_without_numbers(name: str) -> None:
    checks.check_broken_logits(name, "cpu")


def test_counts() -> None:
    checks.check_counts("cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, count, hidden", [(1, 9, 70), (3, 4, 33), (19, 20, 70), (0, 3, 8)])
def test_logits(rows: int, count: int, hidden: int, dtype: torch.dtype) -> None:
    checks.check_logits(rows, count, hidden, dtype, "cpu")


@pytest.mark.few(5)
@pytest.mark.parametrize("name", checks.ROUTERS)
def test_few_rows_are_routed_by_one_kernel(name: str) -> None:
    checks.check_few_rows(
        name, 3, 12, 70, torch.bfloat16 if name == "softmax" else torch.float32, "cpu", name == "softmax"
    )


@pytest.mark.parametrize(
    "tokens, top_k, experts, rows",
    [(1, 2, 5, 16), (40, 3, 8, 16), (600, 4, 9, 32), (2100, 4, 5, 64), (1500, 3, 33, 16)],
)
def test_blocks(tokens: int, top_k: int, experts: int, rows: int) -> None:
    checks.check_blocks(tokens, top_k, experts, rows, "cpu")


def test_blocks_of_more_experts_and_pairs_than_a_program_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgl.runtime.kernels.experts.expert_align_blocks.PLACED", 255)
    monkeypatch.setattr("sgl.runtime.kernels.experts.expert_align_blocks._place", None)
    checks.check_blocks(1500, 3, 33, 16, "cpu")


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("options", checks.PRODUCTS)
@pytest.mark.parametrize("rows", [1, 3, 21])
def test_mixtures(options: str, rows: int, dtype: torch.dtype) -> None:
    with products_as_on_a_tensor_core():
        checks.check_mixture(checks.PRODUCTS[options], rows, 5, 2, 48, 40, dtype, "cpu")


@pytest.mark.parametrize("options", checks.PRODUCTS)
@pytest.mark.parametrize("rows, fixed", [(1, False), (3, False), (21, False), (6, True)])
def test_mixtures_of_which_some_experts_lie_elsewhere(
    options: str, rows: int, fixed: bool, request: pytest.FixtureRequest
) -> None:
    """What nothing was written to has no numbers: who reads it is found out."""
    torch.use_deterministic_algorithms(True)
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    assert torch.empty(3).isnan().all() and torch.ones(1).new_empty(2).isnan().all()
    with products_as_on_a_tensor_core():
        checks.check_partial(
            checks.PRODUCTS[options], rows, 48, 40, torch.float32 if rows % 2 else torch.bfloat16, "cpu", fixed=fixed
        )


@pytest.mark.parametrize("seed", range(8))
def test_copies_take_turns(seed: int) -> None:
    checks.check_turns(seed, "cpu")


def test_copies_take_turns_in_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgl.runtime.kernels.experts.expert_replica_select.FEW", 16)
    monkeypatch.setattr("sgl.runtime.kernels.experts.expert_replica_select.CHUNK", 32)
    checks.check_turns(1, "cpu", 90)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_what_is_not_added_up_yet(dtype: torch.dtype) -> None:
    with products_as_on_a_tensor_core():
        checks.check_spread(11, 5, 2, 48, 40, dtype, "cpu")


@pytest.mark.few(2)
@pytest.mark.parametrize("form", checks.FORMS)
def test_mixtures_in_few_bits(form: str) -> None:
    """Pairs by themselves, sorted, and sorted for a fixed order of sums."""
    with products_as_on_a_tensor_core():
        checks.check_in_few_bits(form, {"name": "silu"}, 2, 3, 2, 128, 64, torch.bfloat16, "cpu")
        checks.check_in_few_bits(
            form, {"name": "quick_gelu", "limit": 0.7, "bias": True}, 11, 3, 2, 128, 64, torch.bfloat16, "cpu"
        )


@pytest.mark.whole
def test_few_bits_with_weights_of_the_input() -> None:
    for rows, fixed in ((3, False), (3, True), (10, False)):
        with products_as_on_a_tensor_core():
            checks.check_in_few_bits(
                "floats", {"name": "silu", "of_input": True}, rows, 4, 2, 160, 96, torch.float16, "cpu", fixed=fixed
            )


@pytest.mark.parametrize("hidden, inner", [(80, 72), (33, 7)])
def test_sizes_that_are_no_multiple_of_a_tile(hidden: int, inner: int) -> None:
    for rows in (2, 17):
        checks.check_mixture({"bias": True}, rows, 3, 3, hidden, inner, torch.float32, "cpu")
