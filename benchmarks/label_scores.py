"""Which score of a choice finds the right label, and how much are its probabilities worth? On labels in own words.

    python benchmarks/label_scores.py [--data ../shared/data] [--rows 350] [--keep]

The texts are utterances of SNIPS (CC0) that the bundled model has not seen: the 70 of examples/data, or with --data
more of them. Each set of labels is scored with and without the end of the turn after the label, and without the prompt.
Log loss is the mean -log(probability of the right label). --keep writes results/label_scores.txt.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench_results import keep_text

import sgl

SAMPLE = Path(__file__).parents[1] / "examples/data/snips_sample.json"
END = "<|end|>"
INTENTS = {  # the data set's name: one word, several words, other words, what it means
    "AddToPlaylist": ("playlist", "add to playlist", "extend a list of songs", "add a song or artist to a playlist"),
    "BookRestaurant": ("restaurant", "book a restaurant", "table reservation", "reserve a table at a restaurant"),
    "GetWeather": ("weather", "weather", "forecast", "ask for the weather"),
    "PlayMusic": ("music", "play music", "listen", "play music"),
    "RateBook": ("rating", "rate a book", "give stars to a book", "give a rating to a book"),
    "SearchCreativeWork": (
        "title",
        "search for a creative work",
        "look up a work of art by its title",
        "find a book, film, song, game or show",
    ),
    "SearchScreeningEvent": (
        "cinema",
        "search for the screening of a film",
        "movie times",
        "find when and where a film is shown",
    ),
}
Rows = list[tuple[tuple[float, ...], tuple[float, ...]]]  # of each label: log-probabilities after the prompt and alone


class Scored(sgl.ChoicesMethod):
    """Keeps what it is given."""

    uses_priors = True

    def choose(self, choices: list[sgl.Choice]) -> tuple[str, dict[str, Any]]:
        return choices[0].text, {"rows": [(choice.logprobs, choice.priors) for choice in choices]}


@sgl.function
def score(s: sgl.State, labels: dict[str, str | None], text: str):
    s += sgl.system(sgl.labels(labels))
    s += sgl.user(text)
    s += sgl.assistant_begin()
    plain, ended = s.fork(2)
    plain += sgl.select("x", list(labels), choices_method=Scored())
    ended += sgl.select("x", [sgl.special(label + END) for label in labels], choices_method=Scored())
    return plain.get_meta_info("x")["rows"], ended.get_meta_info("x")["rows"]


def total(rows: Rows) -> list[float]:
    return [sum(given) for given, _ in rows]


def mean(rows: Rows) -> list[float]:
    return [sum(given) / len(given) for given, _ in rows]


def gain(rows: Rows) -> list[float]:
    return [sum(a - b for a, b in zip(given, alone, strict=True)) / len(given) for given, alone in rows]


SCORES: dict[str, tuple[bool, Callable[[Rows], list[float]]]] = {
    "sum (answer_likelihood)": (False, total),
    "sum with the end": (True, total),
    "mean (token_length_normalized)": (False, mean),
    "mean with the end": (True, mean),
    "mean less prior (unconditional_likelihood_normalized)": (False, gain),
}


def greedy(rows: Rows) -> int:
    given = [list(values) for values, _ in rows]
    width = max(map(len, given))
    matrix = [values + [sum(values) / len(values)] * (width - len(values)) for values in given]
    return max(range(len(matrix)), key=lambda index: matrix[index])


def measured(engine: sgl.Engine, labels: dict[str, str | None], texts: list[tuple[str, str]]) -> list[str]:
    """A line for each score: accuracy, log loss."""
    items = [{"labels": labels, "text": text} for text, _ in texts]
    found = [state.ret_value for state in score.run_batch(items, backend=engine)]
    names = list(labels)
    lines = []
    for name, (ended, scored) in SCORES.items():
        right, loss = 0, 0.0
        for rows, (_, label) in zip(found, texts, strict=True):
            values = scored(rows[ended])
            right += names[values.index(max(values))] == label
            loss += math.log(math.fsum(math.exp(value - max(values)) for value in values)) + max(values)
            loss -= values[names.index(label)]
        lines.append(f"  {name}  {right / len(texts):.1%}  {loss / len(texts):.2f}")
    right = sum(names[greedy(rows[0])] == label for rows, (_, label) in zip(found, texts, strict=True))
    return [*lines, f"  token by token (greedy_token_selection)  {right / len(texts):.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with snips-train.jsonl.gz")
    parser.add_argument("--rows", type=int, default=350)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    if args.data:
        from training.probes import held_back_utterances

        texts = [(row["text"], row["intent"]) for row in held_back_utterances(args.data)]
        Random(5).shuffle(texts)
    else:
        texts = [(row["text"], row["intent"]) for row in json.loads(SAMPLE.read_text(encoding="utf-8"))["rows"]]
    texts = texts[: args.rows]
    sets = {
        "the data set's names, defined": {intent: (intent, words[3]) for intent, words in INTENTS.items()},
        "one word, defined": {intent: (words[0], words[3]) for intent, words in INTENTS.items()},
        "one to six words": {intent: (words[1], None) for intent, words in INTENTS.items()},
        "one to six words, defined": {intent: (words[1], words[3]) for intent, words in INTENTS.items()},
        "other words, defined": {intent: (words[2], words[3]) for intent, words in INTENTS.items()},
    }
    lines = [f"{len(texts)} utterances, 7 labels; score  right  log loss"]
    with sgl.Engine() as engine:
        for name, labels in sets.items():
            named = [(text, labels[intent][0]) for text, intent in texts]
            lines += [f"\n{name}", *measured(engine, dict(labels.values()), named)]
            print("\n".join(lines[-8:]), flush=True)
    if args.keep:
        keep_text("label_scores", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
