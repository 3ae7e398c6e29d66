"""Weights packed and restored by the compiled kernels, to the byte what torch makes of them."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_int4 import drawn, needs_product, threads
from test_small_floats import drawn as drawn_floats
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from gguf_writer import random_blocks

from sgl.runtime.layers import cpu_kernels, weight_memory
from sgl.runtime.layers.linear_layers import in_blocks
from sgl.runtime.quantization import cpu_float_linear
from sgl.runtime.quantization.cpu_float_linear import FloatBlockedLinear
from sgl.runtime.quantization.cpu_int4_linear import CpuWeightBlocks, blocked, packed, supports
from sgl.runtime.quantization.fused_quantized_weight import FusedQuantizedWeight, QuantizedPiece
from sgl.runtime.quantization.quantized_weight import QuantizedWeight, stacked
from sgl.runtime.quantization.readers.gguf_block_kinds import BLOCKS
from sgl.runtime.quantization.readers.gguf_blocks import decode
from sgl.runtime.quantization.stored_codes import StoredCodes

__all__ = ["threads"]
KINDS = list(BLOCKS)
SIZES = [(1, 2), (31, 6), (32, 64), (33, 514), (100, 300), (256, 1024)]


def filled(part: Tensor) -> Tensor:
    """[rows, n] -> [blocks, BLOCK, n], zeros beyond the last row."""
    return F.pad(part, (0, 0, 0, -len(part) % cpu_kernels.BLOCK)).unflatten(0, (-1, cpu_kernels.BLOCK))


def as_bytes(part: Tensor) -> Tensor:
    return part.contiguous().view(torch.uint8).flatten(1)


def blocks_by_torch(weight: QuantizedWeight) -> Tensor:
    """The blocks of csrc/quantized/quantized_groups.h; scales and shifts are as they are found."""
    layout = blocked(weight, None, torch.float32).layout
    inputs, codes = layout.padded(weight.shape[1]), weight.codes
    fours = filled(F.pad(codes, (0, inputs - codes.shape[1]))).view(torch.int32)
    lines = fours if layout.bits == 8 else fours[..., ::2] | fours[..., 1::2] << 4
    start = layout.codes(weight.shape[1])
    numbers = blocked(weight, None, torch.float32).blocks.blocks[:, :start]
    return torch.cat((numbers, as_bytes(lines.transpose(1, 2))), 1)


def scales_by_torch(weight: QuantizedWeight) -> Tensor:
    """The numbers before the codes, of a weight without table, factor, zeros and offset: its scales."""
    halves = weight.scale.half()
    scale = halves if torch.equal(halves.float(), weight.scale.float()) else weight.scale.float()
    return as_bytes(filled(scale).transpose(1, 2))


def blocks_of(weight: QuantizedWeight) -> CpuWeightBlocks:
    return blocked(weight, None, torch.float32).blocks


@needs_product
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("size", SIZES)
def test_plain_weights(size: tuple[int, int], dtype: torch.dtype, threads: None) -> None:
    weight = (50 * torch.randn(size, generator=torch.Generator().manual_seed(0))).to(dtype)
    group = 1 if dtype == torch.float32 else 2
    expected = filled(weight).unflatten(2, (-1, group)).transpose(1, 2).contiguous()
    for given in (weight, weight.t().contiguous().t()):
        found = in_blocks(given)
        assert found.shape == expected.shape and torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@needs_product
@pytest.mark.parametrize("seed", range(40))
def test_codes_of_every_form(seed: int, threads: None) -> None:
    weight = drawn(seed)
    expected = blocks_by_torch(weight)
    assert torch.equal(blocks_of(weight).blocks, expected)
    order = torch.randperm(weight.shape[0], generator=torch.Generator().manual_seed(seed)).repeat(2)
    copied = replace(weight.take(order), stored=weight.codes[order])
    for found, same in zip(blocks_of(weight.take(order)), blocks_of(copied), strict=True):
        assert (found is None) is (same is None) and (found is None or torch.equal(found, same))
    assert torch.equal(blocks_of(copied).blocks, blocks_by_torch(copied))


@needs_product
@pytest.mark.parametrize("scale", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", [(1, 16), (33, 100), (64, 640)])
def test_scales_and_the_gap_after_them(size: tuple[int, int], scale: torch.dtype, threads: None) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = QuantizedWeight(
        torch.randint(0, 16, size, generator=generator, dtype=torch.uint8),
        torch.randn(size[0], -(-size[1] // 32), generator=generator).to(scale),
        32,
        zero=8.0,
    )
    numbers = scales_by_torch(weight)
    found = blocks_of(weight).blocks[:, : blocked(weight, None, torch.float32).layout.codes(size[1])]
    assert torch.equal(found, F.pad(numbers, (0, found.shape[1] - numbers.shape[1])))


@needs_product
@pytest.mark.parametrize("seed", range(30))
def test_small_floats(seed: int, threads: None) -> None:
    weight = drawn_floats(seed)
    codes = F.pad(weight.codes, (0, weight.shape[1] % 2)) if weight.is_float8 else packed(weight.codes)
    found, scale = FloatBlockedLinear(weight, None, torch.float32).weight, cpu_float_linear.scales_of(weight)
    scales = as_bytes(filled(scale).transpose(1, 2))
    given = as_bytes(filled(codes).transpose(1, 2))
    gap = found.shape[1] - scales.shape[1] - given.shape[1]
    assert 0 <= gap < weight_memory.LINE
    assert torch.equal(found, torch.cat((F.pad(scales, (0, gap)), given), 1))


def by_torch(kind: str, raw: Tensor, shape: tuple[int, int]) -> QuantizedWeight:
    """What a machine without the compiled kernels reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_kernels, "kernels", None)
        return decode(kind, raw, shape)


@needs_product
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows, count", [(1, 1), (33, 3), (70, 9)])
def test_gguf(kind: str, rows: int, count: int, threads: None) -> None:
    raw, shape = random_blocks(kind, rows, count, rows), (rows, count * BLOCKS[kind].elements)
    found, expected = decode(kind, raw, shape), by_torch(kind, raw, shape)
    assert isinstance(found.stored, StoredCodes) and isinstance(expected.stored, Tensor)
    assert torch.equal(found.codes, expected.codes) and torch.equal(found.scale, expected.scale)
    if supports(found) is None:
        assert torch.equal(blocks_of(found).blocks, blocks_by_torch(expected))
    for dtype in (torch.float32, torch.bfloat16):
        dense = torch.empty(shape, dtype=dtype)
        expected.restore_by_torch(dense)
        assert torch.equal(found.dense(dtype), dense)


@needs_product
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_several_tensors_in_another_order(kind: str, threads: None) -> None:
    """As q, k and v are fused."""
    inputs, pieces, start = 2 * BLOCKS[kind].elements, [], 0
    for rows in (40, 8, 9):
        pieces.append((start, random_blocks(kind, rows, 2, rows), (rows, inputs)))
        start += rows
    order = torch.randperm(start, generator=torch.Generator().manual_seed(0))

    def fused(read: object) -> QuantizedWeight:
        weight = FusedQuantizedWeight([QuantizedPiece(at, kind, read(kind, *given)) for at, *given in pieces])  # type: ignore[operator]
        (found,) = weight.take(order).together()
        assert isinstance(found, QuantizedWeight)
        return found

    found, expected = fused(decode), fused(by_torch)
    assert torch.equal(found.codes, expected.codes) and torch.equal(found.scale, expected.scale)
    if supports(found) is None:
        assert torch.equal(blocks_of(found).blocks, blocks_by_torch(expected))
    assert torch.equal(found.dense(torch.bfloat16), expected.dense(torch.bfloat16))


@needs_product
def test_rows_of_several_kinds_are_unpacked() -> None:
    first, second = (decode(kind, random_blocks(kind, 5, 1, 0), (5, 256)) for kind in ("Q4_K", "Q2_K"))
    alike = replace(
        second, group=first.group, scale=first.scale, offset=first.offset, fine_scale=None, fine_offset=None
    )
    found = stacked([first, alike])
    assert found is not None and isinstance(found.stored, Tensor)
    assert torch.equal(found.stored, torch.cat((first.codes, second.codes)))


@needs_product
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(40))
def test_restored_numbers_are_those_of_the_definition(seed: int, dtype: torch.dtype, threads: None) -> None:
    for weight in (drawn(seed), drawn_floats(seed)):
        expected = torch.empty(weight.shape, dtype=dtype)
        weight.restore_by_torch(expected)
        assert torch.equal(weight.dense(dtype), expected)


@needs_product
def test_a_weight_of_pieces_is_restored_in_its_place() -> None:
    weight, plain = drawn(2), torch.randn(7, drawn(2).shape[1])
    pieces = [QuantizedPiece(0, "a", weight), QuantizedPiece(len(weight.codes), "plain", plain)]
    found = torch.full((len(weight.codes) + 7, plain.shape[1]), torch.nan)
    FusedQuantizedWeight(pieces).restore(found)
    assert torch.equal(found, torch.cat((weight.dense(), plain)))
    assert torch.equal(FusedQuantizedWeight(pieces).dense(torch.bfloat16), found.bfloat16())


@needs_product
def test_weights_of_a_model_follow_each_other_and_those_of_another_are_apart() -> None:
    with weight_memory.stored_together():
        first, second = weight_memory.weight_bytes(100), weight_memory.weight_bytes(64)
        with weight_memory.stored_together():
            inner = weight_memory.weight_bytes(10)
        third, large = weight_memory.weight_bytes(1), weight_memory.weight_bytes(weight_memory.ROOM + 5)
    places = [part.data_ptr() - first.data_ptr() for part in (first, second, third)]
    assert places == [0, 128, 192] and first.data_ptr() % cpu_kernels.HUGE_PAGE == 0
    storages = {part.untyped_storage().data_ptr() for part in (first, inner, large, weight_memory.weight_bytes(8))}
    assert len(storages) == 4 and len(large) == weight_memory.ROOM + 5


@needs_product
def test_large_memory_to_load_into_is_on_huge_pages() -> None:
    large, small = (
        weight_memory.empty_to_load((rows, 1024), torch.bfloat16, torch.device("cpu")) for rows in (2**14, 3)
    )
    assert large.shape == (2**14, 1024) and small.shape == (3, 1024) and large.dtype == small.dtype == torch.bfloat16
    assert large.data_ptr() % cpu_kernels.HUGE_PAGE == 0


def test_only_the_thread_that_asks_computes_alone() -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        with cpu_kernels.torch_on_one_thread():
            other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            other.start()
            other.join()
            assert torch.get_num_threads() == 1 and seen == [3]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
