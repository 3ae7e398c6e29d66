"""What makes a value of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..sampling.options import SamplingOptions
from ..sampling.text_limits import is_cut

if TYPE_CHECKING:
    from ..backend import Backend

Value_co = TypeVar("Value_co", covariant=True)


class TypedTextParser(Protocol[Value_co]):
    """How the text of a gen becomes a value, and what keeps the text readable.

    `copies`: parts of it are copied from the text that the option `copied_from` gives.
    """

    @property
    def copies(self) -> bool: ...

    def constrain(self, options: SamplingOptions, backend: Backend) -> SamplingOptions:
        """The options of the gen, with a grammar that only readable texts fulfil."""

    def read(self, text: str, backend: Backend) -> Value_co:
        """The value of a finished text. Raises ValueError, naming the text, if it has none."""

    def is_cut(self, text: str, options: SamplingOptions, meta: Mapping[str, Any], backend: Backend) -> bool:
        """Whether a limit came before the value was whole. `options` are those of the gen, `meta` its meta_info."""


class WholeTextParser:
    """Of readings whose whole text is the value: it is cut wherever more could have followed."""

    copies = False

    def is_cut(self, text: str, options: SamplingOptions, meta: Mapping[str, Any], backend: Backend) -> bool:
        return is_cut(text, options, meta)
