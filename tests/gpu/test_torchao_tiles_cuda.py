"""The tiles that torchao keeps four bits in, packed and multiplied by the card's own kernels."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
        reason="needs a CUDA device that packs these tiles",
    ),
]


@pytest.mark.parametrize("tiles", [2, 4, 8])
@pytest.mark.parametrize("shape", [(8, 128), (64, 1024), (136, 3072)])
def test_the_tiles_of_this_card_are_read(tiles: int, shape: tuple[int, int]) -> None:
    from sgl.runtime.quantization.readers.torchao_int4_reader import untile

    generator = torch.Generator("cuda").manual_seed(tiles)
    q = torch.randint(0, 16, shape, generator=generator, device="cuda", dtype=torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(q[:, ::2] << 4 | q[:, 1::2], tiles)
    assert torch.equal(untile(packed), q) and torch.equal(untile(packed.cpu()), q.cpu())


def test_a_weight_in_tiles_means_what_the_card_multiplies() -> None:
    from sgl.runtime.quantization.quantized_weight import QuantizedWeight
    from sgl.runtime.quantization.readers.torchao_int4_reader import untile

    generator, group = torch.Generator("cuda").manual_seed(1), 64
    q = torch.randint(0, 16, (64, 1024), generator=generator, device="cuda", dtype=torch.uint8)
    both = torch.randn(1024 // group, 64, 2, generator=generator, device="cuda").bfloat16()
    packed = torch.ops.aten._convert_weight_to_int4pack(q[:, ::2] << 4 | q[:, 1::2], 8)
    found = torch.ops.aten._weight_int4pack_mm(torch.eye(1024, device="cuda").bfloat16(), packed, group, both)
    weight = QuantizedWeight(
        untile(packed), both[..., 0].T.contiguous(), group, zero=8.0, offset=both[..., 1].T.contiguous()
    )
    torch.testing.assert_close(found.T.float(), weight.dense(), rtol=2**-7, atol=2**-5)
