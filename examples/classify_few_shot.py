"""Few-shot classification with `select`: do descriptions or shots help? Measured, with the model's own certainty.

    python examples/classify_few_shot.py [--shots 2 4] [--rows 70] [--unsure 5]

The sentences are held-back rows of SNIPS (CC0). All prompts of a setting begin alike, so descriptions and shots are
computed once. The bundled model has learnt to read descriptions and has hardly seen shots: they mislead it, and the
table shows that. A large model gains from both; the program is the same: `sgl.Engine("path/of/a/model")`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import sgl

SAMPLE = Path(__file__).parent / "data/snips_sample.json"
LABELS = {  # the data set's name: our label, what it means
    "AddToPlaylist": ("playlist", "add a song or artist to a playlist"),
    "BookRestaurant": ("restaurant", "reserve a table at a restaurant"),
    "GetWeather": ("weather", "ask for the weather"),
    "PlayMusic": ("music", "play music"),
    "RateBook": ("rating", "give a rating to a book"),
    "SearchCreativeWork": ("title", "find a book, film, song, game or show"),
    "SearchScreeningEvent": ("cinema", "find when and where a film is shown"),
}
Row = dict[str, Any]


def label(row: Row) -> str:
    return LABELS[row["intent"]][0]


def task(described: bool = True) -> str:
    """The labels, a line each, under the sentence that the bundled model was trained on."""
    lines = [f"- {name}: {about}" if described else f"- {name}" for name, about in LABELS.values()]
    return "\n".join(["Choose the intent of the user's request.", *lines])


@sgl.function
def classify(s: sgl.State, text: str, shots: list[Row], described: bool):
    s += sgl.system(task(described))
    for shot in shots:
        s += sgl.user(shot["text"]) + sgl.assistant(label(shot))
    s += sgl.user(text)
    s += sgl.assistant(sgl.select("label", [name for name, _ in LABELS.values()]))


def certainty(state: sgl.State) -> float:
    """How likely the model holds its choice to be, given that it is one of them."""
    return max(state.probs("label").values())


def measure(engine: sgl.Engine, rows: list[Row], shots: list[Row], described: bool) -> list[sgl.State]:
    """Classify all rows and print a line of the table."""
    before, started = engine.stats(), time.perf_counter()
    items = [{"text": row["text"], "shots": shots, "described": described} for row in rows]
    states = classify.run_batch(items, backend=engine, progress_bar=False)
    seconds, spent = time.perf_counter() - started, engine.stats() - before
    right = sum(state["label"] == label(row) for row, state in zip(rows, states, strict=True))
    sure = sum(map(certainty, states)) / len(states)
    print(
        f"{len(shots) // len(LABELS):5} {'yes' if described else 'no':>9}  {right:3} of {len(rows):3} {sure:9.0%} "
        f"{spent.computed_tokens:9,} {spent.cached_tokens:9,} {seconds:8.1f}"
    )
    return states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shots", type=int, nargs="*", default=[2, 4], help="numbers of shots for each label, at most 4"
    )
    parser.add_argument("--rows", type=int, default=70, help="how many sentences of the sample")
    parser.add_argument("--unsure", type=int, default=5, help="how many of the least sure answers are shown")
    args = parser.parse_args()
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    rows = sample["rows"][: args.rows]
    with sgl.Engine() as engine:
        print("shots described  right      certainty  computed    cached  seconds")
        measure(engine, rows, [], described=False)
        states = measure(engine, rows, [], described=True)
        for count in args.shots:
            measure(engine, rows, sample["shots"][: count * len(LABELS)], described=True)
    print("\nthe least sure ones, described and without shots:")
    for row, state in sorted(zip(rows, states, strict=True), key=lambda pair: certainty(pair[1]))[: args.unsure]:
        verdict = "right" if state["label"] == label(row) else f"it is {label(row)}"
        print(f"{certainty(state):4.0%}  {state['label']:11} {verdict:17} {row['text']}")


if __name__ == "__main__":
    main()
