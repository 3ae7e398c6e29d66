"""Kernels that may start under the tail of the one before: programmatic dependent launch, on Hopper and later.

A kernel that is `launched` so may begin once every program of the one before has allowed it (`gdc_launch_dependents`)
or has ended. It waits (`gdc_wait`) until that one has ended and its writes are visible; since each of them waits, all
that ran before has ended by then. Until it waits it may read what no kernel writes between it and the last one launched
as usual: weights, and data from before the step, whose first kernel is launched as usual. Code that reads more
documents what it relies on. A kernel that is launched as usual waits for the end of all before it.
"""

from __future__ import annotations

import os
from functools import cache

import torch

OVERLAP = os.environ.get("SGL_OVERLAP_LAUNCHES") != "0"


def overlaps(device: torch.device) -> bool:
    """Whether kernels are to start under the tail of the one before."""
    return OVERLAP and can_overlap(device)


@cache
def can_overlap(device: torch.device) -> bool:
    """Whether the device starts a kernel before the one in front of it has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def launched(overlap: bool) -> dict[str, bool]:
    """The keywords of a launch: DEPENDENT, with which the kernel waits, and the launcher's own."""
    return {"DEPENDENT": overlap, "launch_pdl": True} if overlap else {"DEPENDENT": False}
