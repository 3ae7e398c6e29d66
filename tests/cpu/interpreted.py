"""Triton's interpreter, with products as a tensor core makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from triton.runtime import interpreter


@contextmanager
def products_as_on_a_tensor_core() -> Iterator[None]:
    """The interpreter's own take bfloat16 for integers, and numpy's bits depend on a row's place in the matrix."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", _dot)
        yield


def _dot(builder, a, b, d, input_precision, max_num_imprecise_acc):
    terms = _numbers(a)[..., None] * _numbers(b)[..., None, :, :]
    return interpreter.TensorHandle((terms.sum(-2) + d.data).astype(np.float32), d.dtype.scalar)


def _numbers(handle) -> np.ndarray:
    """float64, whatever the interpreter holds."""
    if handle.data.dtype == np.uint16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return handle.data.astype(np.float64)
