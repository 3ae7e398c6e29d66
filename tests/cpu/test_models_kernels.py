"""The compiled CPU kernels against torch's own operations, and their team of threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checkpoints import write_checkpoint
from rig import Rig, Row

from sgl.runtime.attention import AttentionShape, attention_backend
from sgl.runtime.cache.kv_pool import KVPool
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.activation_functions import gated
from sgl.runtime.layers.norm_layers import PerHeadNorm, RMSNorm
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.layers.rotary_embedding import RotaryEmbedding, rotate
from sgl.runtime.step.step_batch import StepBatch

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
pytestmark = pytest.mark.skipif(cpu_kernels.kernels is None, reason="the package was built without the CPU kernels")
multiplies = pytest.mark.skipif(not cpu_kernels.can_multiply(torch.bfloat16, CPU), reason="this CPU has no AVX512_BF16")


def tolerance(dtype: torch.dtype) -> dict[str, Any]:
    return {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 1e-2}


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    cpu_kernels.set_threads(request.param)
    yield
    cpu_kernels.set_threads(1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    for rows, size in ((1, 384), (7, 50), (3, 1)):
        norm, x = RMSNorm(size, 1e-5, CPU), torch.randn(rows, size).to(dtype)
        norm.weight.normal_()
        expected = F.rms_norm(x.float(), (size,), norm.weight, 1e-5).to(dtype)
        torch.testing.assert_close(norm(x), expected, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul(dtype: torch.dtype) -> None:
    x = torch.randn(5, 2 * 77) * torch.tensor([1e-3, 1.0, 10.0, 60.0, 300.0])[:, None]
    x = x.to(dtype)
    gate, up = x.float().chunk(2, -1)
    torch.testing.assert_close(gated("silu", x), (F.silu(gate) * up).to(dtype), **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotate_touches_the_given_heads_only(dtype: torch.dtype) -> None:
    angles = RotaryEmbedding(RopeParameters(1e4, 24, 24), dtype, CPU).gather(torch.tensor([3, 0, 900]), 901)
    qkv = torch.randn(3, 7, 24).to(dtype)
    before = qkv.clone()
    halves = before[:, :5].float().view(3, 5, 2, 12)
    expected = halves * angles.cos.float() + halves.flip(2) * angles.sin.float()
    rotated = rotate(qkv[:, :5], angles)
    torch.testing.assert_close(rotated, expected.view(3, 5, 24).to(dtype), **tolerance(dtype))
    assert torch.equal(qkv[:, 5:], before[:, 5:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_heads_touches_the_given_heads_only(dtype: torch.dtype) -> None:
    norm, heads = PerHeadNorm(torch.randn(5, 24), 1e-5), torch.randn(3, 7, 24).to(dtype)
    before = heads.clone()
    expected = F.rms_norm(before[:, :5].float(), (24,), None, 1e-5) * norm.weight
    torch.testing.assert_close(norm(heads[:, :5]), expected.to(dtype), **tolerance(dtype))
    assert torch.equal(heads[:, 5:], before[:, 5:])


def attend(count: int) -> torch.Tensor:
    """Decodes of `count` sequences with fixed contents, whatever their number."""
    shape = AttentionShape(6, 2, 64, (None,))
    generator = torch.Generator().manual_seed(0)
    pool = KVPool(1, 3000, 2, 64)
    pool.k.normal_(generator=generator)
    pool.v.normal_(generator=generator)
    q = torch.randn(8, 10, 64, generator=generator)[:count]
    slots = torch.randperm(2999, generator=generator).to(torch.int32) + 1
    contexts = slots[:2920].split([50 + 90 * i for i in range(8)])[:count]
    unused, lengths = torch.zeros(0), [len(context) for context in contexts]
    new = torch.tensor([int(context[-1]) for context in contexts])
    batch = StepBatch(unused, unused, new, [1] * count, lengths, [c.numpy() for c in contexts], unused)
    attention = attention_backend("cpu", pool, shape)
    attention.plan(batch)
    query, key, value = q.split((6, 2, 2), 1)
    attention.store(key, value, 0, batch)
    return attention.attend(query, key, value, 0, batch)


def test_attention_of_a_sequence_has_the_same_bits_in_any_batch(threads: None) -> None:
    everything = attend(8)
    for count in (1, 2, 5):
        assert torch.equal(attend(count), everything[:count])


def test_threads_of_the_host_share_the_team() -> None:
    cpu_kernels.set_threads(3)
    expected = attend(8)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(100):
            if not torch.equal(attend(8), expected):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    cpu_kernels.set_threads(1)
    assert not wrong
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_without_helpers() -> None:
    cpu_kernels.set_threads(3)
    torch.set_num_threads(1)
    expected = attend(8)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(attend(8), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    cpu_kernels.set_threads(1)


@multiplies
def test_bfloat16_decodes_agree_with_the_prefill(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, hidden_size=96, num_attention_heads=6, intermediate_size=130)
    tokens = list(range(20, 60))
    whole = Rig(path, torch.bfloat16).step([(Row(tokens), 40)], every_row=True)
    for width in (1, 2, 3, 4):
        rig, rows = Rig(path, torch.bfloat16), [Row(tokens) for _ in range(width)]
        rig.step([(row, 30) for row in rows])
        for place in range(30, 40):
            logits = rig.step([(row, 1) for row in rows])
            assert (logits - whole[place]).norm() < 0.05 * whole[place].norm() * width**0.5
