"""Reads the pairs of an adapter as they are stored: adjacent ones in one read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from ...common.argument_checks import shown
from ...errors import CheckpointError
from ...loading.tensor_files.safetensors_header import DTYPES, StoredTensor
from ...loading.tensor_files.tensor_source import FileWeightSource, WeightSource
from ...memory.huge_pages import huge_page_tensor

WHOLE = {2: (np.int16, np.uint16), 4: (np.int32, np.uint32), 8: (np.int64, np.uint64)}  # by bytes of a number


def read_pairs(source: WeightSource, wanted: Iterable[StoredTensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """By name, in the file's type; what is wider than float32, in this. Raises CheckpointError where `dtype`, the
    model's, cannot hold them.
    """
    found: dict[str, Tensor] = {}
    for run in _runs(source, wanted):
        numbers = _numbers(source, run)
        parts = numbers.split([(stored.stop - stored.start) // numbers.itemsize for stored in run])
        if not are_held(numbers, dtype):
            raise spoilt_pair_error(
                source,
                next(stored for stored, part in zip(run, parts, strict=True) if not are_held(part, dtype)),
                dtype,
            )
        found |= {stored.name: _narrow(part.view(stored.shape)) for stored, part in zip(run, parts, strict=True)}
    return found


def are_held(numbers: Tensor, dtype: torch.dtype) -> bool:
    """Whether all stay numbers in this type: as whole numbers, bits of floats are in the order of
    what they stand for, infinity and nan above all.
    """
    if not numbers.numel():
        return True
    signed, unsigned = WHOLE[numbers.itemsize]
    bits = numbers.view(torch.uint8).numpy().view(unsigned)
    ends = np.array(
        [bits.view(signed).max(), bits.max().view(signed)]
    )  # the largest, and of those below zero, if any, the smallest
    return bool(torch.from_numpy(ends).view(numbers.dtype).to(dtype).isfinite().all())


def spoilt_pair_error(source: WeightSource, stored: StoredTensor, dtype: torch.dtype) -> CheckpointError:
    return CheckpointError(
        f"{source.name}: tensor {shown(stored.name)} holds nan or values beyond {dtype}; the training diverged, or "
        "the file is damaged"
    )


def _runs(source: WeightSource, wanted: Iterable[StoredTensor]) -> Iterator[list[StoredTensor]]:
    """Those of one type that follow each other in a file."""
    run: list[StoredTensor] = []
    for stored in sorted(wanted, key=lambda each: (each.start, each.stop)):
        if run and (
            not isinstance(source, FileWeightSource) or (run[-1].stop, run[-1].dtype) != (stored.start, stored.dtype)
        ):
            yield run
            run = []
        run.append(stored)
    if run:
        yield run


def _numbers(source: WeightSource, run: list[StoredTensor]) -> Tensor:
    """One dimension, all tensors of a run. A file that is cut short lacks the last of them."""
    size = run[-1].stop - run[0].start
    part = huge_page_tensor(size)
    source.read(run[-1]._replace(start=run[0].start), 0, part)
    return part.view(DTYPES[run[0].dtype])


def _narrow(values: Tensor) -> Tensor:
    """Rounded twice on the way to the model's type, as float32 is what adapters are computed in."""
    return values.float() if values.dtype is torch.float64 else values
