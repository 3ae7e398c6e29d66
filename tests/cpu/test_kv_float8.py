"""Keys and values in float8 on the CPU: the compiled kernels against torch, and
against pools that hold what is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_cases import Work
from attention_oracle import World, layers, works
from checkpoints import write_checkpoint
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rig import Rig, Row

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.attention import AttentionLayout, LayerAttention
from sgl.runtime.errors import ConfigError
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.float8_reference import FP8, KVScaleFactors, restore, saturate

compiled = pytest.mark.skipif(cpu_kernels.kernels is None, reason="needs the compiled kernels")
DTYPES = [torch.float32, torch.bfloat16]
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
WAYS = range(cpu_kernels.kernels.E4M3 + 1) if cpu_kernels.kernels else []


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    cpu_kernels.kernels.set_e4m3_way(request.param)
    yield
    cpu_kernels.kernels.set_e4m3_way(cpu_kernels.kernels.E4M3)


def stored(x: torch.Tensor, scales: KVScaleFactors) -> torch.Tensor:
    """uint8 [2, rows, width]: what the kernel keeps of the keys x, and of the values x."""
    pool, slots = torch.zeros(2, *x.shape, dtype=torch.uint8), torch.arange(len(x))
    cpu_kernels.kernels.store(
        cpu_kernels.KINDS[x.dtype],
        x.data_ptr(),
        x.stride(0),
        x.data_ptr(),
        x.stride(0),
        slots.data_ptr(),
        pool[0].data_ptr(),
        pool[1].data_ptr(),
        *x.shape,
        True,
        *scales,
    )
    return pool


@compiled
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_stored_are_the_bytes_of_torch(dtype: torch.dtype) -> None:
    """Every number of bfloat16; of float32 all around the numbers between two of float8, and some of every size."""
    halves = torch.arange(2**16, dtype=torch.int32) << 16
    numbers = torch.arange(256, dtype=torch.uint8).view(FP8).float().nan_to_num().sort().values
    ties = ((numbers[1:] + numbers[:-1]) / 2).view(torch.int32)
    bits = (
        halves
        if dtype == torch.bfloat16
        else torch.cat([halves, *(ties + more for more in (-1, 0, 1)), torch.arange(-(2**31), 2**31 - 1, 9973).int()])
    )
    x = bits[: len(bits) // 64 * 64].view(torch.float32).to(dtype).view(-1, 64)
    scales = KVScaleFactors(1.0, 0.37)
    for found, scale in zip(stored(x, scales), scales, strict=True):
        expected = saturate(x, scale)
        assert torch.equal(found.view(FP8).float().nan_to_num(1e9), expected.float().nan_to_num(1e9))
        assert torch.equal(found & 0x7F, expected.view(torch.uint8) & 0x7F)  # a NaN's sign is nobody's


@compiled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [16, 32, 64, 96, 128, 500, 512])
def test_attention_has_the_bits_of_that_over_the_restored_numbers(dim: int, dtype: torch.dtype, way: None) -> None:
    """All codes, scattered slots; NaN in what is not seen."""
    layer = LayerAttention(
        6, 2, dim, dim, dim**-0.5 / 100, softcap=3.0 if dim == 64 else None, window=100 if dim == 96 else None
    )
    layout, slots, lengths = AttentionLayout.of([layer]), 400, (1, 70, 299)
    generator = torch.Generator().manual_seed(dim)
    codes = torch.randint(0, 256, (2, 1, slots, 2, dim), generator=generator, dtype=torch.uint8)
    eight, plain = layout.pool(slots, FP8), layout.pool(slots, dtype)
    eight.k, eight.v = codes.where(codes & 0x7F != 0x7F, 0).view(FP8)
    plain.k, plain.v = restore(eight.k, 1.0, dtype), restore(eight.v, 1.0, dtype)
    order = torch.randperm(slots - 1, generator=generator)[: sum(lengths)].numpy().astype(np.int32) + 1
    q = torch.randn(3, 6, dim, generator=generator).to(dtype)
    found = []
    for pool in (eight, plain):
        world = World(layout, [(length - 1, 1) for length in lengths], dtype)
        pool.fill_nan(np.setdiff1d(np.arange(1, slots), order).tolist())
        world.pool, world.batch.context_slots[:] = pool, np.split(order, np.cumsum(lengths)[:-1])
        backend = world.backend("cpu")
        backend.plan(world.batch)
        found.append(backend.attend(q, None, None, 0, world.batch))
    assert torch.equal(*found) and not found[0].isnan().any()


@compiled
@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    work=works(),
    layers=layers((3, 32, 64, 96), alibi=False, uneven=False),
    sinks=st.booleans(),
    exact=st.booleans(),
    seed=st.integers(0, 999),
    name=st.sampled_from(["cpu", "torch_native"]),
)
def test_every_option_with_scales_by_layer(
    work: Work, layers: list[LayerAttention], sinks: bool, exact: bool, seed: int, name: str
) -> None:
    world = World(AttentionLayout.of(layers), work, seed=seed, kept=FP8)
    world.check(world.backend(name, deterministic=exact and name == "cpu"), sinks, tolerance=1e-4)


@compiled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [16, 40, 64, 96])
def test_prefills_read_what_torch_reads(dim: int, dtype: torch.dtype, way: None) -> None:
    layout = AttentionLayout.of([LayerAttention(2, 1, dim, dim, 0.1)] * 2)
    world = World(layout, [(300, 40)], dtype, kept=FP8)
    slots = torch.from_numpy(world.slots[0]).long()
    compiled, native = world.backend("cpu"), world.backend("torch_native")
    for layer in (0, 1):
        for found, expected in zip(
            compiled._torch.read(slots, layer, dtype), native.read(slots, layer, dtype), strict=True
        ):
            assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7)) and found.isnan().any()


@compiled
def test_a_stale_read_is_loud(way: None) -> None:
    for dtype in DTYPES:
        world = World(AttentionLayout.of([LayerAttention(2, 1, 64, 64, 0.1)]), [(40, 1)], dtype, kept=FP8)
        world.pool.fill_nan([int(world.slots[0][7])])
        backend = world.backend("cpu")
        backend.plan(world.batch)
        assert backend.attend(torch.ones(1, 2, 64, dtype=dtype), None, None, 0, world.batch).isnan().all()


@compiled
def test_queries_that_no_kernel_reads() -> None:
    world = World(AttentionLayout.of([LayerAttention(2, 1, 64, 64, 0.1)]), [(4, 1)], kept=FP8)
    with pytest.raises(
        ConfigError, match=r"here: cpu, torch.float8_e4m3fn with queries of torch.float16; use attention='torch_native'"
    ):
        world.backend("cpu", dtype=torch.float16)
    assert world.backend("auto", dtype=torch.float16).name == "torch_native"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("eight"), tokenizer=True)


@pytest.mark.skipif(not cpu_kernels.kernels or not cpu_kernels.kernels.AVX512, reason="needs the compiled step")
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if cpu_kernels.can_multiply(dtype, torch.device("cpu"))])
def test_the_compiled_step_has_the_bits_of_its_layers(folder: Path, dtype: torch.dtype) -> None:
    found = []
    for by_step in (True, False):
        rig = Rig(folder, dtype, kept=FP8)
        layout = rig.model.config.attention
        layout.scale(rig.pool, [KVScaleFactors(0.5 + layer, 2.0 - layer / 2) for layer in range(len(layout.layers))])
        assert rig.model.step is not None
        rig.model.step = rig.model.step if by_step else None
        rows = [Row(list(range(5, 45))) for _ in range(3)]
        found.append(
            [rig.step([(row, 12 + index) for index, row in enumerate(rows)]), rig.step([(row, 1) for row in rows])]
        )
    assert all(torch.equal(*each) for each in zip(*found, strict=True))


@pytest.mark.few(2)
@compiled
@pytest.mark.parametrize(
    "options",
    [{}, {"deterministic": True}, {"attention": "torch_native"}, {"page_size": 16, "host_kv": "10MB"}],
    ids=str,
)
def test_an_engine_keeps_half_of_the_bytes(folder: Path, options: dict[str, object]) -> None:
    taken = []
    for kept in ("auto", "fp8"):
        with Engine(folder, device="cpu", dtype="bfloat16", kv_tokens=2048, kv_dtype=kept, **options) as engine:
            first = engine.generate("The quick brown fox jumps", GREEDY)
            again = engine.generate("The quick brown fox jumps", GREEDY)
            assert len(first.token_ids) == 12 and (kept == "auto" or first.token_ids == again.token_ids)
            info = engine.info()
            taken.append(info["kv_bytes"])
            assert info["kv_dtype"] == ("bfloat16" if kept == "auto" else "float8_e4m3fn")
            assert info["kv_scales"] == (None if kept == "auto" else "1 in every layer")
            assert info["attention"] == options.get("attention", "cpu")
    assert taken[0] == 2 * taken[1]
