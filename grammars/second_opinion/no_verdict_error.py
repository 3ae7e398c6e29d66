"""Why an engine has no verdict."""

from __future__ import annotations


class NoVerdictError(Exception):
    """An engine cannot read the grammar or the text; the message is the reason."""
