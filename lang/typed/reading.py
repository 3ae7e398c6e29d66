"""What makes a value of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from ..sampling.options import SamplingOptions

if TYPE_CHECKING:
    from ..backend import Backend

Value_co = TypeVar("Value_co", covariant=True)


class Reading(Protocol[Value_co]):
    """How the text of a gen becomes a value, and what keeps the text readable."""

    def constrain(self, options: SamplingOptions, backend: Backend) -> SamplingOptions:
        """The options of the gen, with a grammar that only readable texts fulfil."""

    def read(self, text: str, backend: Backend) -> Value_co:
        """The value of a finished text. Raises ValueError, naming the text, if it has none."""
