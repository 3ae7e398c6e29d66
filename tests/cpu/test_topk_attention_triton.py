"""Triton's kernels for chosen tokens in Triton's interpreter, against one query and one head at a time."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("tests/gpu does this on the device", allow_module_level=True)

from attention_cases import Work, with_padding
from attention_oracle import works
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import products_as_on_a_tensor_core
from layer_checks import check_decoder
from part_models import MODELS, LawRig, PartsRig
from test_latent_triton import small
from topk_checks import DECODES, FEW, Choices

from sgl.runtime.attention import AttentionBackend, attention_backend
from sgl.runtime.kernels.attention import topk_select
from sgl.runtime.layers.float8_reference import FP8
from sgl.runtime.models import decoder


@pytest.fixture(autouse=True, scope="module")
def tensor_core():
    with products_as_on_a_tensor_core():
        yield


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns and launches that a few dozen tokens fill."""
    monkeypatch.setattr(topk_select, "BLOCK", 32)
    monkeypatch.setattr(topk_select, "ROOM", 1000)


def backend_of(world: Choices) -> AttentionBackend:
    return small(world.world.backend("triton"))


@settings(max_examples=3, deadline=None)
@given(work=works(), page_size=st.sampled_from([1, 16]), most=st.sampled_from([1, 4, 30]), seed=st.integers(0, 99))
def test_random_steps(work: Work, page_size: int, most: int, seed: int) -> None:
    world = Choices(work, most=most, page_size=page_size, seed=seed, pages=400 if page_size == 1 else 60)
    world.check(backend_of(world))


@pytest.mark.parametrize("kept", [None, FP8])
def test_other_types(kept: torch.dtype | None) -> None:
    world = Choices(FEW, torch.bfloat16, heads=20, kept=kept)
    world.check(backend_of(world), tolerance=0.03 if kept is None else 0.1)


@pytest.mark.parametrize("seed", range(2))
def test_scores_of_any_size_and_sign(seed: int) -> None:
    """The choice is that of the law, whose sums are the same but for what float32 rounds."""
    world = Choices(FEW, whole=False, seed=seed)
    ours, law = (world.choose(backend) for backend in (backend_of(world), world.world.backend("torch_native")))
    for row, count in enumerate(law.counts[:, 0].tolist()):
        assert ours.counts[row] == count and torch.equal(ours.slots[row, 0, :count], law.slots[row, 0, :count])


def test_zeros_of_both_signs_are_equal() -> None:
    """What no head answers to is a zero times a share."""
    world = Choices(DECODES, most=30)
    world.queries.zero_()
    world.shares[:, 1:] = 0
    world.check(backend_of(world))


def test_a_padded_batch_of_a_graph() -> None:
    world = Choices(DECODES)
    backend = backend_of(world)
    chosen = world.choose(backend)
    expected = backend.attend_topk(world.q, chosen, 0, world.world.batch)
    assert backend.variant(world.world.batch) == 256
    padded, more = (
        with_padding(world.world.batch, 8),
        (torch.cat((each, each)) for each in (world.queries, world.shares, world.q)),
    )
    queries, shares, q = more
    backend.plan(padded)
    backend.store_index(torch.ones(8, 4), 0, padded)
    assert not world.world.pool.index[:, 0].any()
    world.choose(backend)
    again = backend.choose(queries, shares, 0, padded)
    assert again.counts.tolist() == [*chosen.counts.tolist(), [1], [1], [1], [1]] and not again.slots[4:, 0, 0].any()
    torch.testing.assert_close(backend.attend_topk(q, again, 0, padded)[:4], expected)


def test_more_tokens_than_a_launch_takes() -> None:
    world = Choices([(12, 14)])
    backend = attention_backend("triton", world.world.pool, world.world.layout, max_running=4)
    world.check(small(backend))


def test_graphs_are_apart_by_the_room_of_their_scores() -> None:
    backend, found = backend_of(world := Choices(DECODES)), []
    for longest in (1, 9, 10, 64, 65):
        world.world.batch.context_lens = [3, longest]
        found.append(backend.variant(world.world.batch))
    assert found == [None, None, 16, 64, 128] and backend.reasons(0)[1] == "attention='triton' was asked for"


def test_steps_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the GPU's executor: layers that choose, and one that attends to what the layer before it chose."""
    spec = MODELS["latent attention, chosen tokens"]
    law = LawRig(spec)
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    rig = PartsRig(spec, attention="triton")
    small(rig.attention)
    assert rig.model.capturable and rig.attention.capturable
    check_decoder(
        law, rig, 1e-5, [((1, 4, 0, 0), False), ((0, 3, 2, 5), True), ((0, 1, 0, 1), False), ((0, 1, 1, 0), True)]
    )
