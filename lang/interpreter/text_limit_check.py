"""What becomes of a text that ended at a limit: an error where it has a type, a warning where it was closed."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ..sampling.text_limits import is_constrained, is_cut, truncated_error

if TYPE_CHECKING:
    from ..backend import Backend, Generated
    from ..nodes.ir import SglGen
    from ..places.source_location import SourceLocation
    from ..sampling.options import SamplingOptions

_shown: dict[str, dict[Any, Any]] = {}  # by file, what Python has shown of its lines


def check_limit(
    node: SglGen[Any], options: SamplingOptions, backend: Backend, where: SourceLocation | None, made: Generated
) -> None:
    """Raise TruncatedError for a text that a limit cut, if it has a type or its gen minds; else `truncated` says it.

    `options` are those that the text was made with.
    """
    meta = made.meta_info
    if meta.get("closed"):
        _warn(node, where)
    elif not meta.get("edited"):  # edited in a journal: the text was not cut
        cut = is_constrained(options) and is_cut(made.text, options, meta)
        typed = node.reading is not None and node.reading.is_cut(made.text, options, meta, backend)
        if typed or (cut and options.error_on_truncation):
            raise truncated_error(made.text, options, meta)
        if cut:
            made.meta_info = {**meta, "truncated": True}


def _warn(node: SglGen[Any], where: SourceLocation | None) -> None:
    """Python shows it once for a line."""
    message = (
        f"{node!r} reached its limit and was closed (close_at_limit): the end of the text is its grammar's, not the "
        "model's; "
        "give it more tokens"
    )
    if where is None:
        warnings.warn(message, UserWarning, stacklevel=2)
    else:
        warnings.warn_explicit(message, UserWarning, where.file, where.line, registry=_shown.setdefault(where.file, {}))
