"""Token ids that callers give, as rows of int32."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .argument_checks import shown

MOST_TOKENS = 1 << 28  # at once: more than a context has


def check_token_ids(name: str, values: Any) -> NDArray[np.int32]:
    """Token ids as int32 [n].

    Whether there are such tokens is for the engine to say. Raises ConfigError for what is no row of them.
    """
    try:
        if hasattr(values, "__len__") and len(values) > MOST_TOKENS:
            raise ConfigError(f"{name} got {len(values)} token ids; give at most {MOST_TOKENS}")
        row = np.asarray(values)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} must be a row of token ids, got {shown(values)}: {error}") from error
    if row.ndim != 1 or (len(row) and row.dtype.kind not in "iu"):
        raise ConfigError(f"{name} must be a row of token ids, which are integers, got {shown(values)}")
    if len(row) and not -(2**31) <= int(row.min()) <= int(row.max()) < 2**31:
        raise ConfigError(f"{name}: token ids must be in 0..{2**31 - 1}, got {int(row.min())}..{int(row.max())}")
    return row.astype(np.int32, copy=False)


def check_token_id_lists(name: str, values: Any) -> list[NDArray[np.int32]]:
    """Several of them, each int32 [n]."""
    if isinstance(values, str | bytes) or not isinstance(values, Collection) or not getattr(values, "ndim", 1):
        raise ConfigError(f"{name} must be given a list of rows of token ids, got {shown(values)}")
    return [check_token_ids(f"a row of {name}", row) for row in values]
