"""The kinds of blocks that GGUF files keep weights in, by name. `gguf_blocks` decodes them."""

from __future__ import annotations

from typing import NamedTuple


class GGUFBlockKind(NamedTuple):
    """id: the file's number for the kind.  elements: neighbours in a row that share a block.  bytes: of a block."""

    id: int
    elements: int
    bytes: int


BLOCKS = {
    "Q4_0": GGUFBlockKind(2, 32, 18),
    "Q4_1": GGUFBlockKind(3, 32, 20),
    "Q5_0": GGUFBlockKind(6, 32, 22),
    "Q5_1": GGUFBlockKind(7, 32, 24),
    "Q8_0": GGUFBlockKind(8, 32, 34),
    "Q2_K": GGUFBlockKind(10, 256, 84),
    "Q3_K": GGUFBlockKind(11, 256, 110),
    "Q4_K": GGUFBlockKind(12, 256, 144),
    "Q5_K": GGUFBlockKind(13, 256, 176),
    "Q6_K": GGUFBlockKind(14, 256, 210),
    "IQ4_NL": GGUFBlockKind(20, 32, 18),
    "IQ4_XS": GGUFBlockKind(23, 256, 136),
    "MXFP4": GGUFBlockKind(39, 32, 17),
    "NVFP4": GGUFBlockKind(40, 64, 36),
}
REFUSED = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    41: "Q1_0",
    42: "Q2_0",
}


def unsupported(kind: str) -> str:
    return (
        f"weights of kind {kind} are not supported; supported are F32, F16, BF16, {', '.join(BLOCKS)}: take a "
        "file of those"
    )
