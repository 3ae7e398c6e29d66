"""Which adapter (LoRA) computes which state, as given to `run`, `run_batch` and `fork`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from types import EllipsisType
from typing import Any, SupportsIndex

from ..errors import BadValueError, shown

Adapter = str | None  # the name of one that the backend has loaded; None: the base
Adapters = Adapter | Sequence[Adapter]
Change = Adapters | EllipsisType  # ...: as the state that is forked


def checked(adapter: Any) -> Adapter:
    """Raises BadValueError for what is neither a name nor None."""
    if adapter is None or (isinstance(adapter, str) and adapter):
        return adapter
    raise BadValueError(
        f"adapter is {adapter!r}; give the name of an adapter that the backend has loaded, or None for the base"
    )


def one_each(adapter: Any, count: int, what: str) -> list[Adapter]:
    """One name for all, or a list with one for each."""
    if not isinstance(adapter, list | tuple):
        return [checked(adapter)] * count
    if len(adapter) != count:
        raise BadValueError(
            f"adapter is a list of {len(adapter)} for {count} {what}; give one name for all, or one for each"
        )
    return [checked(one) for one in adapter]


def of_forks(adapter: Any, size: int) -> list[Adapter] | None:
    """None: they keep the adapter of the state that is forked. Raises BadValueError for an invalid number of forks."""
    if not isinstance(size, SupportsIndex) or index(size) < 0:
        raise BadValueError(
            f"fork({shown(size)}): give a whole number from 0, the number of states that continue from here"
        )
    return None if adapter is ... else one_each(adapter, size, "forks")
