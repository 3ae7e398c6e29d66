"""A choices method of your own: `select` takes the answer with the least expected cost, and may hand over to a person.

    python examples/custom_choices.py [--rows 70] [--costs 1 0.5 0.2 0.1]

`sgl.select(..., choices_method=LeastCost(...))`: a wrong label costs 1, asking a person costs what you set, so a person
is
asked where the model is less sure than that. "ask a person" is a choice like the others, but its score comes from this
program and not from the model. The prompts are those of classify_few_shot.py with four shots, where the bundled model
is
unsure. The last two columns compare what the answers cost with what the model expected: how well it knows what it does
not know.
"""

from __future__ import annotations

import argparse
import json

from classify_few_shot import LABELS, SAMPLE, Row, label, task

import sgl

ASK = "ask a person"
NAMES = [name for name, _ in LABELS.values()]


class LeastCost(sgl.ChoicesMethod):
    """Choose the label that is likeliest, or ASK where being wrong is expected to cost more than `cost_of_asking`."""

    def __init__(self, cost_of_asking: float) -> None:
        self.cost_of_asking = cost_of_asking

    def choose(self, choices: list[sgl.Choice]) -> tuple[str, dict[str, float]]:
        """The label, and the expected cost, which `get_meta_info` returns."""
        labels = [choice for choice in choices if choice.text != ASK]
        best = max(labels, key=lambda choice: choice.prob)
        cost = 1.0 - best.prob / sum(choice.prob for choice in labels)
        return ASK if cost > self.cost_of_asking else best.text, {"expected_cost": min(cost, self.cost_of_asking)}


@sgl.function
def classify(s: sgl.State, text: str, shots: list[Row], method: sgl.ChoicesMethod):
    s += sgl.system(task())
    for shot in shots:
        s += sgl.user(shot["text"]) + sgl.assistant(label(shot))
    s += sgl.user(text)
    s += sgl.assistant(sgl.select("label", [*NAMES, ASK], choices_method=method))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=70, help="how many sentences of the sample")
    parser.add_argument(
        "--costs", type=float, nargs="+", default=[1, 0.5, 0.2, 0.1], help="costs of asking, from 0 to 1"
    )
    args = parser.parse_args()
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    rows = sample["rows"][: args.rows]
    with sgl.Engine() as engine:
        print("asking costs  answered  right of them  asked  total cost  expected by the model")
        for cost in args.costs:
            items = [{"text": row["text"], "shots": sample["shots"], "method": LeastCost(cost)} for row in rows]
            states = classify.run_batch(items, backend=engine, progress_bar=False)
            answered = [(row, state) for row, state in zip(rows, states, strict=True) if state["label"] != ASK]
            right = sum(state["label"] == label(row) for row, state in answered)
            asked = len(rows) - len(answered)
            expected = sum(state.get_meta_info("label")["expected_cost"] for state in states)
            print(
                f"{cost:12g} {len(answered):9} {right / max(1, len(answered)):14.0%} {asked:6} "
                f"{len(answered) - right + cost * asked:11.1f} {expected:22.1f}"
            )


if __name__ == "__main__":
    main()
