"""Could a model that is held to a gen's options have written this text? If not, why not."""

from __future__ import annotations

import re

from ...backend import GenRequest
from ...sampling.constraint_match import byte_matcher, constraint_of
from ...sampling.options import SamplingOptions


def answer_objection(text: str, request: GenRequest, truncated: bool = False) -> str | None:
    """Why the gen could not have given the text, or None. `truncated`: it was cut at max_new_tokens."""
    return _stops_earlier(text, request) or _breaks_grammar(text, request.options, truncated)


def _stops_earlier(text: str, request: GenRequest) -> str | None:
    """A stop ends the text where it is complete; with keep_stop, after it."""
    kept = bool(request.options.keep_stop)
    patterns = [re.escape(stop) for stop in request.stops if stop] + list(request.options.stop_regex or ())
    for pattern in patterns:
        found = re.search(pattern, text)
        if found and not (kept and found.end() == len(text)):
            cut = text[: found.end() if kept else found.start()]
            return f"it has the stop {found.group()!r} in it, where the model's text ends; script {cut!r}"
    return None


def _breaks_grammar(text: str, options: SamplingOptions, truncated: bool) -> str | None:
    constraint = constraint_of(options)
    if constraint is None:
        return None
    kind, source = constraint
    matcher = byte_matcher(constraint)
    data = text.encode("utf-8", "surrogatepass")
    for position, byte in enumerate(data):
        if not matcher.accept(byte):
            at = len(data[:position].decode("utf-8", "ignore"))
            return f"the {kind} {source} does not allow it: {text[at:]!r:.40} cannot stand at character {at}"
    if not matcher.can_end and not truncated:
        rest = matcher.shortest_end().decode(errors="replace")
        return f"the {kind} {source} is not fulfilled at its end; it could end with {rest!r}"
    return None
