"""Of many examples, those that are most like the text at hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sgl.lang.backends.default_backend import resolve_backend
from sgl.lang.errors import BadValueError, TooLongError, shown

from .too_long import is_too_long

Floats = npt.NDArray[np.float32]
Embed = Callable[[list[str]], Any]


class ExampleVectors:
    """Unit vectors of texts, from their mean: what all of them share does not distinguish them. Made at first use."""

    def __init__(self, texts: list[str], embed: Embed) -> None:
        self.texts = texts
        self._embed = embed
        self._lock = threading.Lock()
        self._made: tuple[Floats, Floats] | None = None

    def similarities(self, text: str) -> Floats:
        """The cosine of each text and this one."""
        mean, vectors = self._vectors()
        found: Floats = vectors @ _unit(np.asarray(self._embed([text]), dtype=np.float32) - mean)[0]
        return found

    def _vectors(self) -> tuple[Floats, Floats]:
        with self._lock:
            if self._made is None:
                vectors = np.asarray(self._embed(self.texts), dtype=np.float32)
                mean: Floats = vectors.mean(axis=0)
                self._made = mean, _unit(vectors - mean)
            return self._made


class NearestExamples(Sequence[tuple[str, Any]]):
    """Examples that are chosen by text: called with one, it returns the k most similar pairs, the most similar last.

    As a sequence, it has all examples.
    """

    def __init__(self, examples: Sequence[tuple[str, Any]], k: int, vectors: ExampleVectors) -> None:
        self.examples = list(examples)
        self.k = k
        self._vectors = vectors

    def __call__(self, text: str) -> list[tuple[str, Any]]:
        """The examples for a text. An example with the same text is not among them: it would give the answer away."""
        found = self._vectors.similarities(text)
        order = [i for i in np.argsort(-found, kind="stable") if self.examples[i][0] != text]
        return [self.examples[i] for i in reversed(order[: self.k])]

    def __getitem__(self, index: Any) -> Any:
        return self.examples[index]

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def longest(self) -> list[tuple[str, Any]]:
        """The k longest pairs: no text is given longer ones, but for how a tokenizer splits them."""
        return sorted(self.examples, key=lambda pair: sum(len(str(part).encode(errors="replace")) for part in pair))[
            -self.k :
        ]

    def with_values(self, examples: Sequence[tuple[str, Any]]) -> NearestExamples:
        """The same texts with other values; the vectors are shared."""
        return NearestExamples(examples, self.k, self._vectors)


def nearest(
    examples: Sequence[tuple[str, Any]], k: int, *, backend: Any = None, embed: Embed | None = None
) -> NearestExamples:
    """Return examples that are chosen by text: for each text the `k` pairs (text, value) most like it.

    Give it where `sgl.extract` and `sgl.classify` take `examples=`, or call it with a text in a program. backend: an
    engine, whose model makes the vectors (`engine.embed`); None: the default backend. embed: another function from a
    list of texts to their vectors. The examples are embedded once, when they are first used. Raises BadValueError for
    no examples, and for a backend without embeddings.
    """
    for index, pair in enumerate(examples := as_given(examples)):
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BadValueError(f"nearest: example {index} is {shown(pair)}; give (text, value)")
    if isinstance(k, bool) or not isinstance(k, int):
        raise BadValueError(f"nearest: k is {shown(k)}; give a whole number from 1")
    if not examples or k < 1:
        raise BadValueError(f"nearest got {len(examples)} examples and k={k}; give at least one of each")
    vectors = ExampleVectors([text for text, _ in examples], embed or _engine_embed(backend))
    return NearestExamples(examples, k, vectors)


def examples_for(text: str, examples: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    """The examples of a prompt with this text. Raises TooLongError where it is too long to be embedded."""
    if not isinstance(examples, NearestExamples):
        return examples
    try:
        return examples(text)
    except Exception as error:  # `embed` may be any function
        if not is_too_long(error):
            raise
        raise TooLongError(
            f"the text is too long to choose examples by it: {error}; give examples= as a list"
        ) from error


def as_given(examples: Iterable[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Examples that can be read once for each of many texts. Raises BadValueError for what is no list."""
    if not isinstance(examples, Iterable):
        raise BadValueError(f"examples is {shown(examples)}; give a list of pairs of a text and its answer")
    return examples if isinstance(examples, NearestExamples) else tuple(examples)


def _engine_embed(backend: Any) -> Embed:
    resolved = resolve_backend(backend)
    found: Embed | None = getattr(getattr(resolved, "engine", None), "embed", None)
    if found is None:
        raise BadValueError(
            f"{type(resolved).__name__} makes no embeddings; give backend=sgl.Engine(...), or embed= a function from a "
            "list of texts to their vectors"
        )
    return found


def _unit(vectors: Floats) -> Floats:
    scaled: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return scaled
