"""What weights of 8 and 4 bits cost on the CPU: sgl-nano in bfloat16 against both, in distributions and in scores.

    python -m benchmarks.int8_loss [--keep] [--data ../shared/data --count 100 --engines bfloat16 int4_gptq]

The conversations of fp8_prompts.json go through the model with the right answers in place; every next-token
distribution is compared with that of bfloat16. With --data, the tasks of training/evaluate.py are done by an engine of
each kind on the same held-back rows. int4_gptq is calibrated by other conversations of that file, for the tasks also by
dialogues of training. --keep writes results/int8_loss.txt.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bench_results import keep_text
from benchmarks.fp8_loss import Kind, calibration, measure, report, texts
from sgl.runtime import Engine
from sgl.runtime.nano.nano_prompts import Message, dialogue_prefix, service_question
from training.dialogues import load_services, state_answer, turns_until
from training.evaluate import TITLES, score_states, score_task
from training.values import rows

KINDS = (
    Kind("float32", dtype=torch.float32),
    Kind("weights int8", weights="int8"),
    Kind("int8 and float32", dtype=torch.float32, weights="int8"),
    Kind("weights fp8", weights="fp8"),
    Kind("weights int4", weights="int4"),
    Kind("weights int4_hqq", weights="int4_hqq"),
    Kind("weights int4_gptq", weights="int4_gptq"),
    Kind("weights nvfp4", weights="nvfp4"),
    Kind("weights mxfp4", weights="mxfp4"),
)
ENGINES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "weights": "int8"},
    "int4": {"dtype": "bfloat16", "weights": "int4"},
    "int4_hqq": {"dtype": "bfloat16", "weights": "int4_hqq"},
    "int4_gptq": {"dtype": "bfloat16", "weights": "int4_gptq"},
    "nvfp4": {"dtype": "bfloat16", "weights": "nvfp4"},
}
DIALOGUES = 24  # of training, to calibrate by


def distributions() -> str:
    conversations, device = list(texts()), torch.device("cpu")
    losses = measure(conversations, device, KINDS)
    answers = {name: loss.of_answers() for name, loss in losses.items()}
    title = f"sgl-nano, {len(conversations)} conversations\n\n"
    return title + report(losses, "every token") + "\n" + report(answers, "the answers alone")


def dialogues(data: Path) -> list[list[Message]]:
    """Questions for the state of training's dialogues, with their answers."""
    services = load_services(data / "sgd-train-services.json")
    found = Random(0).sample(list(rows(data / "sgd-train.jsonl.gz")), DIALOGUES)
    return [_asked(dialogue, services, number) for number, dialogue in enumerate(found)]


def _asked(dialogue: dict[str, Any], services: dict[str, Any], number: int) -> list[Message]:
    """At one of its turns."""
    turns = [(index, turn["state"][0]) for index, turn in enumerate(dialogue["turns"]) if turn.get("state")]
    index, frame = turns[number % len(turns)]
    service = services[frame["service"]]
    answers = state_answer(service, (frame["intent"], frame["slots"]))
    return [*dialogue_prefix(turns_until(dialogue, index)), service_question(service), *answers]


def scores(options: dict[str, Any], data: Path, count: int) -> dict[str, dict[str, float]]:
    """The scores of each task of training/evaluate.py."""
    found = {}
    if options.get("weights") == "int4_gptq":
        options = {**options, "calibration": [*calibration(), *dialogues(data)]}
    with Engine(**options) as engine:
        for task in TITLES:
            if task.startswith("sgd-"):
                found[task] = score_states(engine, data, task == "sgd-seen", count)
            else:
                found[task] = score_task(engine, data, task, count)
    return found


def score_table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = [f"{'task':34}{'rows':>5}  {'score':11}" + "".join(f"{name:>10}" for name in found)]
    first = next(iter(found.values()))
    for task, title in TITLES.items():
        for score in (name for name in first[task] if name != "count"):
            values = "".join(f"{scored[task][score]:10.1%}" for scored in found.values())
            lines.append(f"{title:34}{first[task]['count']:5}  {score.replace('_', ' '):11}{values}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="score the tasks on rows from here too")
    parser.add_argument("--count", type=int, default=100, help="rows of each task")
    parser.add_argument(
        "--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES), help="those that do the tasks"
    )
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    started = time.perf_counter()
    text = distributions()
    if asked.data:
        text += "\n" + score_table({name: scores(ENGINES[name], asked.data, asked.count) for name in asked.engines})
    print(f"{text}\n{time.perf_counter() - started:.0f} s")
    if asked.keep:
        keep_text("int8_loss", text)


if __name__ == "__main__":
    main()
