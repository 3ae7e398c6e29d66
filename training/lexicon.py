"""Words for names and values that no catalogue has: words of the public texts,
invented ones, and how names are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from training.values import LISTS, WORDS, Pools

Words = tuple[str, ...]

DULL = frozenset(LISTS["stop_words"]) | frozenset(LISTS["glue_words"])


def _snake(words: Sequence[str]) -> str:
    return "_".join(words)


def _camel(words: Sequence[str]) -> str:
    return words[0] + "".join(word.capitalize() for word in words[1:])


def _pascal(words: Sequence[str]) -> str:
    return "".join(word.capitalize() for word in words)


def _kebab(words: Sequence[str]) -> str:
    return "-".join(words)


def _spaced(words: Sequence[str]) -> str:
    return " ".join(words)


def _title(words: Sequence[str]) -> str:
    return " ".join(word.capitalize() for word in words)


def _first_upper(words: Sequence[str]) -> str:
    return " ".join(words).capitalize()


def _upper(words: Sequence[str]) -> str:
    return " ".join(words).upper()


def _constant(words: Sequence[str]) -> str:
    return "_".join(words).upper()


NAME_STYLES: dict[Callable[[Sequence[str]], str], int] = {
    _snake: 11,
    _camel: 4,
    _spaced: 2,
    _title: 2,
    _first_upper: 2,
    _kebab: 1,
    _pascal: 1,
    _constant: 1,
}
"""How field names are written, with weights."""
LABEL_STYLES: dict[Callable[[Sequence[str]], str], int] = {
    _first_upper: 5,
    _title: 4,
    _spaced: 4,
    _upper: 2,
    _snake: 2,
    _camel: 1,
    _kebab: 1,
}
"""How labels are written in documents, with weights."""


class Lexicon:
    """Draws words from a seeded generator; within one example no word comes twice."""

    def __init__(self, rng: Random, pools: Pools) -> None:
        self.rng = rng
        found = [word for word in pools.names.get("word", ()) if word not in DULL]
        self.words = found or [*WORDS, *LISTS["nouns"]]
        participles = [word for word in self.words if word.endswith("ed") and len(word) > 5]
        self.participles = participles or ["painted", "founded", "collected", "signed", "measured"]
        self.used: set[str] = set()

    def restart(self) -> None:
        self.used.clear()

    def word(self) -> str:
        """A fresh word; frequent ones come more often, one of eight is invented."""
        return self._fresh(lambda: self.invented() if self.rng.random() < 0.12 else self._known())

    def participle(self) -> str:
        return self._fresh(lambda: self.rng.choice(self.participles))

    def _known(self) -> str:
        return self.words[int(len(self.words) * self.rng.random() ** 1.7)]

    def _fresh(self, draw: Callable[[], str]) -> str:
        for _ in range(20):
            word = draw()
            if word not in self.used:
                break
        self.used.add(word)
        return word

    def invented(self) -> str:
        return "".join(self.rng.choices(LISTS["syllables"], k=self.rng.randint(2, 3)))

    def phrase(self, least: int = 1, most: int = 3) -> Words:
        return tuple(self.word() for _ in range(self.rng.randint(least, most)))

    def style(self, styles: dict[Callable[[Sequence[str]], str], int]) -> Callable[[Sequence[str]], str]:
        return self.rng.choices(list(styles), weights=list(styles.values()))[0]


def shortened(word: str, rng: Random) -> str:
    """An abbreviation: the first letters, or the consonants."""
    if len(word) < 5:
        return word
    consonants = word[0] + re.sub("[aeiouy]", "", word[1:])
    return word[: rng.randint(3, 4)] if rng.random() < 0.6 or len(consonants) < 3 else consonants[:5]


def plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2:-1] not in "aeiou" else word + "s"
