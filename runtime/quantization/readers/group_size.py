"""How many inputs share a scale, from the shapes; the configuration only chooses among what fits them."""

from __future__ import annotations

from .quantization_config import CheckpointQuantization
from .weight_reader_match import FLOATS, QuantizedModule

SIZES = ("group_size", "q_group_size")


def group_of(module: QuantizedModule, quant_config: CheckpointQuantization, inputs: int, out: int) -> int:
    """Of scales [groups, out], as GPTQ and AWQ keep them. Where layers differ, the configuration has another's size."""
    groups, _ = module.matrix("scales", FLOATS)
    module.expect("scales", FLOATS, (groups, out))
    size = quant_config.size(*SIZES)
    if size and -(-inputs // size) == groups:
        return min(size, inputs)
    if inputs % groups:
        raise module.wrong(
            "scales",
            f"cut {inputs} inputs in no whole groups, and group_size is {size or 'not given'}; correct the "
            "configuration",
        )
    return inputs // groups


def described(group: int, inputs: int) -> str:
    return f"groups of {group}" if group < inputs else "a scale per output"
