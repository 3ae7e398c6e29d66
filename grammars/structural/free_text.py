"""Free text: anything up to the first place where one of some literals is complete.

The literals are found by the automaton of Aho and Corasick, "Efficient string matching" (CACM 18, 1975), as a
`AutomatonExpr` over characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import (
    EMPTY,
    NEVER,
    PLAIN_ALWAYS,
    PLAIN_REPEATED,
    AutomatonExpr,
    ByteClass,
    CharClass,
    Expr,
    Literal,
    Repeat,
    alt,
    seq,
)
from sgl.grammars.errors import InvalidGrammarError
from sgl.grammars.tokens.token_trie import TokenTrie
from sgl.grammars.tokens.vocabulary import Vocabulary

_ASCII = (1 << 128) - 1
_NOWHERE = -2
_WIDE = charset.minus(charset.ANY, ((0, 0x7F),))
_ANY_WIDE = CharClass(_WIDE)
ANY_TEXT: Expr = Repeat(alt(ByteClass(_ASCII, PLAIN_REPEATED), _ANY_WIDE), 0, None)


@dataclass(frozen=True, slots=True)
class AwaitedLiteral:
    """A literal that ends free text, what must follow it, and whether free text goes on after that."""

    text: str
    then: Expr = EMPTY
    again: bool = False


def literal(text: str) -> Expr:
    """A text in UTF-8.

    Raises:
        InvalidGrammarError: it holds half of a surrogate pair.
    """
    try:
        return Literal(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidGrammarError(f"{text!r} has an unpaired surrogate") from error


def one_of(texts: Sequence[str]) -> Expr:
    """One of some literals; empty when there are none."""
    return alt(*map(literal, texts)) if texts else EMPTY


def until(ends: Sequence[str], vocabulary: Vocabulary | None = None) -> Expr:
    """Free text up to and with the first of some literals."""
    return free_text([AwaitedLiteral(end) for end in ends], may_end=False, vocabulary=vocabulary)


def free_text(awaited: Sequence[AwaitedLiteral], *, may_end: bool = True, vocabulary: Vocabulary | None = None) -> Expr:
    """Any text up to the first place where a literal is complete, and what follows that literal.

    Of several literals that are complete at the same place any may be the one that is meant.

    Args:
        awaited: the literals; none of them is empty.
        may_end: the text may end before a literal is complete.
        vocabulary: lets masks use the slices of plain text wherever that is exact.

    Raises:
        InvalidGrammarError: a literal is empty, or can never be complete.
    """
    awaited = _begun_by_barred(awaited)
    _check_barred(awaited)
    if not awaited:
        return ANY_TEXT if may_end else NEVER
    finder = AhoCorasick([a.text for a in awaited])
    plain = _PlainTokens(vocabulary, finder) if vocabulary is not None else None
    states = finder.reachable()
    place = {state: i for i, state in enumerate(states)}
    edges: list[tuple[tuple[Expr, int], ...]] = []
    for state in states:
        mark = PLAIN_ALWAYS if plain is not None and plain.keep_free(finder.spelled[state]) else 0
        inward = _inward(finder.moves[state], finder.complete, awaited, place)
        edges.append((*_back(finder.moves[state], mark), *inward))
    return AutomatonExpr((*edges, ()), (*(may_end for _ in states), True))


def _begun_by_barred(awaited: Sequence[AwaitedLiteral]) -> list[AwaitedLiteral]:
    """A literal that begins with one that free text may not contain goes on from
    there: that one comes for no other reason.
    """
    barred = sorted({a.text for a in awaited if a.then == NEVER and a.text}, key=len)
    found, begins = [], set()
    for one in awaited:
        begin = next(
            (text for text in barred if one.then != NEVER and one.text != text and one.text.startswith(text)), None
        )
        if begin is None:
            found.append(one)
        else:
            begins.add(begin)
            found.append(replace(one, text=begin, then=seq(literal(one.text[len(begin) :]), one.then)))
    return [one for one in found if one.then != NEVER or one.text not in begins]


def _check_barred(awaited: Sequence[AwaitedLiteral]) -> None:
    """A literal that may come must not hold one that may not."""
    for barred in (a.text for a in awaited if a.then == NEVER):
        for one in awaited:
            if one.then != NEVER and barred in one.text:
                raise InvalidGrammarError(
                    f"{one.text!r} can never occur, because it contains {barred!r}, which is excluded"
                )


def _back(moves: Iterable[str], plain: int) -> list[tuple[Expr, int]]:
    """The characters that go on with no literal, to state 0."""
    ascii_mask = _ASCII & ~sum(1 << ord(char) for char in moves if char.isascii())
    beyond = [char for char in moves if not char.isascii()]
    wide = CharClass(charset.minus(_WIDE, charset.of("".join(beyond)))) if beyond else _ANY_WIDE
    return [(ByteClass(ascii_mask, plain), 0), (wide, 0)] if ascii_mask else [(wide, 0)]


def _inward(
    moves: dict[str, int], complete: list[list[int]], awaited: Sequence[AwaitedLiteral], place: dict[int, int]
) -> list[tuple[Expr, int]]:
    """The characters that continue a literal, or complete it: the last place is after all free text."""
    found: list[tuple[Expr, int]] = []
    for char, target in moves.items():
        letter = Literal(char.encode())
        if target in place:
            found.append((letter, place[target]))
        for one in (awaited[i] for i in complete[target]):
            then = seq(letter, one.then)
            if then != NEVER:
                found.append((then, 0 if one.again else len(place)))
    return found


class AhoCorasick:
    """The automaton of Aho and Corasick over characters; state 0 has read nothing of any literal.

    Attributes:
        literals: what is looked for.
        spelled: by state, the longest beginning of a literal that the text so far ends with.
        moves: by state, the characters that lead anywhere but to state 0.
        complete: by state, the numbers of the literals that the text so far ends with.
    """

    def __init__(self, literals: Sequence[str]) -> None:
        if "" in literals:
            raise InvalidGrammarError("an empty literal cannot be waited for")
        for text in literals:
            literal(text)
        self.literals = literals
        self.spelled = list(dict.fromkeys(["", *(text[:i] for text in literals for i in range(1, len(text) + 1))]))
        states = {text: i for i, text in enumerate(self.spelled)}
        longer: list[dict[str, int]] = [{} for _ in states]
        for text, state in states.items():
            if text:
                longer[states[text[:-1]]][text[-1]] = state
        numbers: dict[str, list[int]] = {}
        for i, text in enumerate(literals):
            numbers.setdefault(text, []).append(i)
        suffixes = [[text[i:] for i in range(len(text) + 1) if text[i:] in states] for text in self.spelled]
        self.moves = [_first_of([longer[states[s]] for s in found]) for found in suffixes]
        self.complete = [[i for s in found for i in numbers.get(s, ())] for found in suffixes]

    def reachable(self) -> list[int]:
        """The states that free text can be in, in which no literal is complete; state 0 comes first."""
        found = {0: None}
        work = [0]
        while work:
            new = [t for t in self.moves[work.pop()].values() if not self.complete[t] and t not in found]
            found |= dict.fromkeys(new)
            work += new
        return list(found)


def _first_of(tables: Iterable[dict[str, int]]) -> dict[str, int]:
    """The union of some tables, where the earlier ones have the word."""
    found: dict[str, int] = {}
    for table in tables:
        found = table | found
    return found


class _PlainTokens:
    """Whether a token of plain JSON text can complete a literal; where none can, a slice is exact."""

    def __init__(self, vocabulary: Vocabulary, finder: AhoCorasick) -> None:
        self._trie = vocabulary.trie
        self._nodes: dict[bytes, int] = {b"": -1}
        whole = {text.encode() for text in finder.literals if _is_plain(text)}
        least = min(map(len, whole), default=0)
        long = b"\0".join(token for token in vocabulary.tokens if len(token) >= least) if whole else b""
        self._never = any(text in long for text in whole)
        self._endings = {text[:i] for text in finder.literals for i in range(1, len(text)) if self._begins(text[i:])}

    def keep_free(self, spelled: str) -> bool:
        """Whether no plain token completes a literal of which, at most, a beginning was spelled."""
        return not self._never and not any(spelled[i:] in self._endings for i in range(len(spelled)))

    def _begins(self, text: str) -> bool:
        """Whether any token of plain text may begin with a text."""
        data = text.encode()
        return _is_plain(text) and all(self._node(data[:i]) != _NOWHERE for i in range(1, len(data) + 1))

    def _node(self, data: bytes) -> int:
        """The node of the trie that some bytes lead to."""
        found = self._nodes.get(data)
        if found is None:
            found = self._nodes[data] = _child(self._trie, self._node(data[:-1]), len(data), data[-1])
        return found


def _is_plain(text: str) -> bool:
    return not any(char in '"\\' or char < " " for char in text)


def _child(trie: TokenTrie, node: int, depth: int, byte: int) -> int:
    """The child of a node (-1: the root) by its byte."""
    if node == _NOWHERE:
        return _NOWHERE
    node += 1
    while node < len(trie) and trie.depth[node] == depth:
        if trie.byte[node] == byte:
            return node
        node = int(trie.skip[node])
    return _NOWHERE
