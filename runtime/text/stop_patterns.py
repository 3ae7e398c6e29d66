"""Regular expressions that end a text, searched while it grows: what a pattern may cost is bounded.

The syntax is that of Python's `re`. `re` itself could search for ever, so another library with a timeout searches;
since that one unrolls repeats when it compiles, the size of what it would unroll is bounded too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from ..errors import ConfigError

LONGEST = 1000  # characters of all patterns of one request: so many take a few hundredths of a second to compile
MOST = 32  # patterns of one request
LARGEST = 10_000  # characters and repeats of a pattern whose repeats are written out
WINDOW = 2000  # characters: a longer match is not found
SECONDS = 0.02  # of searching that one text may cost, and for each piece of it
SECONDS_A_PIECE = 0.001


class StopPatterns:
    """The patterns of one text. What it has left of its time is its own, so that it cannot hold up others."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(pattern, *_compiled(pattern)) for pattern in patterns]
        self._left = SECONDS

    def search(self, text: str, fresh: int, begin: int = 0) -> str | None:
        """The first pattern with a match that needs one of the last `fresh` characters of `text` and begins at `begin`
        or later.

        Raises:
            ConfigError: searching took too long.
        """
        self._left = min(SECONDS, self._left + SECONDS_A_PIECE)
        starts = ((found, compiled, max(begin, len(text) - fresh - reach)) for found, compiled, reach in self._patterns)
        return next((found for found, compiled, start in starts if self._finds(compiled, text, start)), None)

    def _finds(self, compiled: Any, text: str, start: int) -> bool:
        started = time.thread_time()
        try:
            return compiled.search(text, max(0, start), timeout=max(self._left, SECONDS_A_PIECE)) is not None
        except TimeoutError:
            raise ConfigError(
                f"stop_regex {compiled.pattern!r} took more than {SECONDS:g} s to search {len(text)} characters; "
                "write it without repeats inside repeats, or use stop"
            ) from None
        finally:
            self._left -= time.thread_time() - started


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ConfigError for patterns that are malformed, too many or too large, before anything is computed."""
    if len(patterns) > MOST:
        raise ConfigError(f"stop_regex has {len(patterns)} patterns; give at most {MOST}")
    if (length := sum(map(len, patterns))) > LONGEST:
        raise ConfigError(
            f"stop_regex {patterns[0][:50]!r}... has {length} characters in all; write it in at most {LONGEST}"
        )
    for pattern in patterns:
        _compiled(pattern)


@lru_cache(1024)
def _compiled(pattern: str) -> tuple[Any, int]:
    """The pattern, compiled, and how many characters before new text a match that needs it can begin."""
    import regex

    try:
        re.compile(pattern)
        parsed = re._parser.parse(pattern)
        if _size(parsed) > LARGEST:
            raise ConfigError(f"stop_regex {pattern!r} repeats too much; nest fewer repeats, or take smaller counts")
        return regex.compile(pattern, regex.VERSION0), _reach(pattern, parsed)
    except (re.error, regex.error, OverflowError) as error:
        raise ConfigError(f"stop_regex {pattern!r} is not a regular expression: {error}") from None
    except RecursionError:
        raise ConfigError(f"stop_regex {pattern!r} is nested too deeply; write it with fewer groups") from None


def _reach(pattern: str, parsed: Any) -> int:
    unbounded = "(?=" in pattern or "(?!" in pattern  # what these look at has no width
    return WINDOW if unbounded else min(WINDOW, int(parsed.getwidth()[1]) + 1)


def _size(parsed: Any) -> int:
    """How large a parsed pattern is when each of its repeats is written out as often as it must match, and once
    more."""
    return sum(_size_of(str(kind), argument) for kind, argument in parsed)


def _size_of(kind: str, argument: Any) -> int:
    if kind.endswith("REPEAT"):
        least, _, body = argument
        return (int(least) + 1) * _size(body)
    return 1 + sum(map(_size, _bodies(argument)))


def _bodies(argument: Any) -> Iterator[Any]:
    """The patterns within a group, a branch or an assertion."""
    for item in argument if isinstance(argument, (tuple, list)) else ():
        if isinstance(item, re._parser.SubPattern):
            yield item
        else:
            yield from _bodies(item)
