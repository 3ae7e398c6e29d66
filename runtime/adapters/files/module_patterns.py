"""Which of many patterns a module's name fits: as in PEFT the first key for which
`re.match(rf"(.*\\.)?({key})$", name)` finds something.

The keys come from an untrusted file, and `re` may search for ever. Keys that are names are looked up; the others become
automata, whose states are made when they are reached. Each module is matched once. The work is counted and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import accumulate

from sgl.grammars import GrammarError, GrammarLimitError, UnsupportedGrammarError
from sgl.grammars.algebra.expr import Alt, Expr, RegexAnchor, Repeat, Seq
from sgl.grammars.algebra.language_operations import Recogniser
from sgl.grammars.regex import parse_regex
from sgl.grammars.regex.regex_parser import RegexParser

from ...common.argument_checks import shown
from ...errors import CheckpointError, brief

MOST_KEYS = 100_000
MOST_EXPRESSIONS = 256  # keys that are more than a name
LONGEST, MOST_WRITTEN = 1000, 20_000  # characters of one such key, and of all
MOST_WORK = 5_000_000  # steps of an automaton, and what takes as long: about half a second
STEPS, NEW_STEPS = 3, 40  # that a piece of a name takes, and one of a name cut as none before it was
WRITE = "write the names of modules, or fewer and shorter patterns"

Places = tuple[tuple[int, int], ...]  # start, end
_Cuts = dict[
    int, dict[Places, dict[tuple[str, ...], int]]
]  # numbers of keys: by their length, by the places of their pieces, by these


class ModulePatterns:
    """keys: in the order in which they are tried.  where: for errors. Raises CheckpointError for a key that is no
    regular expression or cannot be matched in linear time, and for too many keys.
    """

    def __init__(self, keys: Collection[str], where: str) -> None:
        if len(keys) > MOST_KEYS:
            raise CheckpointError(f"{where} has {len(keys):,} keys; at most {MOST_KEYS:,} are read: {WRITE}")
        self._keys, self._where, self._work = list(keys), where, 0
        self._names, self._known = _Names(), dict[str, str | None]()
        others = [(number, key) for number, key in enumerate(self._keys) if not self._is_name(key, number)]
        if len(others) > MOST_EXPRESSIONS or sum(len(key) for _, key in others) > MOST_WRITTEN:
            raise CheckpointError(
                f"{where} has {len(others):,} keys that are no plain names, such as {shown(others[0][1])}; at most "
                f"{MOST_EXPRESSIONS} of {MOST_WRITTEN:,} characters are read: {WRITE}"
            )
        self._others = [(number, Recogniser(_expression(key, where))) for number, key in others]

    def _is_name(self, key: str, number: int) -> bool:
        if self._names.work > MOST_WORK:
            raise self._too_much(f"key {shown(key)}")
        return self._names.add(key, number)

    def first(self, module: str) -> str | None:
        """The first key that fits; None: none does. Raises CheckpointError once all modules together were too much
        work.
        """
        if module not in self._known:
            number = min(self._fitting(module), default=None)
            self._known[module] = None if number is None else self._keys[number]
        return self._known[module]

    def _fitting(self, module: str) -> Iterator[int]:
        """Numbers of keys, among them the least one."""
        named = self._named(module)
        if named is not None:
            yield named
        for number, other in self._others:
            if named is not None and number > named:
                return
            if self._accepts(other, module):
                yield number
                return

    def _accepts(self, other: Recogniser, module: str) -> bool:
        other.work, other.most_work = 0, MOST_WORK - self._work - self._names.work
        try:
            return other.accepts(module)
        except RecursionError:
            raise CheckpointError(f"{self._where} has a pattern that is nested too deeply; {WRITE}") from None
        except GrammarLimitError:
            raise self._too_much(f"module {shown(module)}") from None
        finally:
            self._work += other.work

    def _named(self, module: str) -> int | None:
        found = self._names.first(module)
        if self._work + self._names.work > MOST_WORK:
            raise self._too_much(f"module {shown(module)}")
        return found

    def _too_much(self, last: str) -> CheckpointError:
        return CheckpointError(
            f"{self._where}: its {len(self._keys):,} keys take too long to match, up to {last}; {WRITE}"
        )


def _expression(key: str, where: str) -> Expr:
    """The names that fit. `re` only checks how it is written."""
    pattern = rf"(.*\.)?({key})$"
    if len(key) > LONGEST:
        raise CheckpointError(f"{where} has {shown(key)} of {len(key):,} characters; a pattern has at most {LONGEST:,}")
    try:
        re.compile(pattern)
        if _repeats_anchors(RegexParser(pattern, "python", "").parse()):
            raise UnsupportedGrammarError("an anchor in a repeat", shown(key))
        return parse_regex(rf"\A(?:{pattern})", search=True)
    except (re.error, OverflowError) as error:
        raise CheckpointError(f"{where} has {shown(key)}, which is no regular expression ({error})") from error
    except RecursionError:
        raise CheckpointError(f"{where} has {shown(key)}, which is nested too deeply; {WRITE}") from None
    except GrammarError as error:
        raise CheckpointError(
            f"{where} has {shown(key)}, which cannot be matched in linear time: "
            f"{brief(str(error).partition(' (at position')[0])}; {WRITE}"
        ) from error


def _repeats_anchors(expr: Expr, within: bool = False) -> bool:
    match expr:
        case Repeat(item):
            return _repeats_anchors(item, True)
        case Seq(items) | Alt(items):
            return any(_repeats_anchors(item, within) for item in items)
    return within and isinstance(expr, RegexAnchor)


class _Names:
    """Keys that are names: what stands between dots is taken as it is, an unescaped dot for any character.

    work: done so far, in steps of an automaton.
    """

    NAME = re.compile(r"(\^?)([\w/.-]*|(?:[\w/-]|\\?\.)*)\$?", re.ASCII)
    DOT = re.compile(r"(?<!\\)\.")

    def __init__(self) -> None:
        self._anywhere: _Cuts = {}
        self._rooted: _Cuts = {}  # of keys that begin with ^
        self.work = 0

    def add(self, key: str, number: int) -> bool:
        """False: it is no name."""
        found = self.NAME.fullmatch(key)
        if found is None:
            return False
        pieces = tuple(piece.replace("\\.", ".") for piece in self.DOT.split(found[2]))
        cuts, places = self._rooted if found[1] else self._anywhere, _places(tuple(map(len, pieces)))
        fresh = len(cuts.setdefault(places[-1][1], {}))
        cuts[places[-1][1]].setdefault(places, {}).setdefault(pieces, number)
        self.work += (NEW_STEPS if len(cuts[places[-1][1]]) > fresh else STEPS) * len(pieces)
        return True

    def first(self, module: str) -> int | None:
        return min(self._fitting(module), default=None)

    def _fitting(self, module: str) -> Iterator[int]:
        yield from self._found(self._rooted, module)
        yield from self._found(self._anywhere, module)
        for dot in re.finditer(r"\.", module):
            yield from self._found(self._anywhere, module[dot.end() :])

    def _found(self, cuts: _Cuts, text: str) -> Iterator[int]:
        for places, numbers in cuts.get(len(text), {}).items():
            self.work += STEPS * len(places)
            number = numbers.get(tuple([text[start:end] for start, end in places]))
            if number is not None:
                yield number
            elif self.work > MOST_WORK:
                return


@lru_cache(4096)
def _places(sizes: tuple[int, ...]) -> Places:
    """Of pieces of these sizes, with a character between each two."""
    ends = accumulate(sizes, lambda end, size: end + 1 + size)
    return tuple((end - size, end) for end, size in zip(ends, sizes, strict=True))
