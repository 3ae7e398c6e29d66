"""The instructions that turn codes into numbers, run one by one, against the definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sgl.runtime.kernels.packed.unpack_ptx import text, text_of_bytes
from sgl.runtime.quantization.quantized_weight import E2M1

NF4 = tuple((torch.linspace(-1, 1, 16) ** 3).tolist())
MASK = 0xFFFFFFFF


def run(lines: str, given: dict[str, int], dtype: torch.dtype) -> dict[str, int]:
    """What the registers hold behind the text. given: those that it reads, $1 and so on."""
    found = dict(given)

    def value(name: str) -> int:
        return int(name, 16) if name.startswith("0x") else (int(name) if name.isdigit() else found[name])

    for line in lines.strip("{}\n").split(";"):
        name, *rest = line.replace(",", " ").split() or [""]
        if name and not name.startswith(".reg"):
            found[rest[0]] = step(name, [value(each) for each in rest[1:]], dtype) & MASK
    return found


def step(name: str, given: list[int], dtype: torch.dtype) -> int:
    simple: dict[str, Callable[..., int]] = {
        "and.b32": lambda a, b: a & b,
        "shr.u32": lambda a, n: a >> n,
        "shl.b32": lambda a, n: a << n,
        "mov.b32": lambda a: a,
        "cvt.u32.u16": lambda a: a,
        "or.b32": lambda a, b: a | b,
        "prmt.b32": chosen_bytes,
        "fma.rn.bf16x2": lambda *parts: fused(parts, dtype),
        "fma.rn.f16x2": lambda *parts: fused(parts, dtype),
        "lop3.b32": lambda a, b, c, table: {0xEA: (a & b) | c}[table],
    }
    return simple[name](*given)


def chosen_bytes(low: int, high: int, chosen: int) -> int:
    assert not chosen & 0x8888, "a set bit would spread a sign"
    all_bytes = low | high << 32
    return sum((all_bytes >> 8 * (chosen >> 4 * at & 7) & 255) << 8 * at for at in range(4))


def fused(parts: tuple[int, ...], dtype: torch.dtype) -> int:
    a, b, c = (halves(part, dtype).double() for part in parts)
    return word((a * b + c).to(dtype))


def halves(part: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor([part & 0xFFFF, part >> 16], dtype=torch.int32).to(torch.int16).view(dtype)


def word(pair: Tensor) -> int:
    low, high = (int(part) & 0xFFFF for part in pair.view(torch.int16))
    return low | high << 16


def expected(kind: str, code: int, zero: int) -> float:
    return NF4[code] if kind.startswith("table") else (E2M1[code] if kind.startswith("floats") else float(code - zero))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["plain", "scaled", "floats", "floats, scaled", "table", "table, scaled"])
def test_half_bytes(kind: str, dtype: torch.dtype) -> None:
    scale, zero = torch.tensor([0.625, 1.5]).to(dtype), 7
    generator = torch.Generator().manual_seed(0)
    for at in range(4):
        for codes in torch.randint(0, 16, (40, 2, 4), generator=generator):
            words = sum(int(codes[each, place]) << 16 * each + 4 * place for each in range(2) for place in range(4))
            found = run(text(kind, dtype, at, zero, NF4), {"$1": words, "$2": word(scale), "$3": 0}, dtype)["$0"]
            numbers = torch.tensor([expected(kind, int(code), zero) for code in codes[:, at]]).to(dtype)
            wanted = numbers * scale if "scaled" in kind else numbers
            assert torch.equal(halves(found, dtype), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["plain", "scaled", "shifted"])
@pytest.mark.parametrize("floats", [True, False])
def test_bytes(floats: bool, kind: str, dtype: torch.dtype) -> None:
    """All of them but NaN, two at a time."""
    scale, shift = torch.tensor([0.625, 1.5]).to(dtype), torch.tensor([0.5, -3.0]).to(dtype)
    lines = text_of_bytes(kind, dtype, floats)
    for first in range(0, 256, 2):
        codes = torch.tensor([first, 255 - first]).to(torch.uint8)
        numbers = codes.view(torch.float8_e4m3fn if floats else torch.int8).to(dtype)
        given = {"$1": int(codes[0]) | int(codes[1]) << 8, "$2": word(scale), "$3": word(shift)}
        found = run(lines, given, dtype)["$0"]
        wanted = (
            numbers
            if kind == "plain"
            else (numbers.double() * scale.double() + (shift.double() if kind == "shifted" else 0)).to(dtype)
        )
        assert torch.equal(halves(found, dtype)[~numbers.isnan()], wanted[~numbers.isnan()])
