"""How a split-K product divides its inputs, and which metadata its format has: computed while kernels are compiled."""

from __future__ import annotations

from triton.experimental import gluon

from ..packed.packed_weight import BYTES


@gluon.constexpr_function
def block_of(form):
    """Inputs in the words that a warp reads of an output at a time: 32 words of two bytes."""
    return 64 if form == BYTES else 128


@gluon.constexpr_function
def steps_of(inputs, form, slices, split):
    """Blocks of each warp."""
    return -(-inputs // (block_of(form) * slices * split))


@gluon.constexpr_function
def turn_of(steps, lanes, form):
    """Blocks in a turn of the loop: more of them would have more values in
    registers than there are. lanes: outputs of a warp.
    """
    return 2 if steps % 2 == 0 and (steps == 2 or lanes == 16 or form == BYTES) else 1


@gluon.constexpr_function
def waits_of(steps, waits):
    """Stretches of the inputs: a program begins when the first of x is there."""
    return waits if steps % waits == 0 else 1


@gluon.constexpr_function
def scaled(kind):
    """Whether groups have scales."""
    return kind.endswith("scaled")


@gluon.constexpr_function
def with_zeros(kind):
    return kind.startswith("zeros")


@gluon.constexpr_function
def has_meta(kind):
    return scaled(kind) or with_zeros(kind)
