"""Where the keys and values of a step lie in layers that see a window only, where these have slots of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True, slots=True)
class WindowSlots:
    """As `slots` and `context_slots` of a Batch say it of the other layers. Tokens that no query of the step sees have slot 0."""

    slots: Tensor
    context_slots: list[np.ndarray]
