"""What do a thousand questions on one document cost? One sgl.decide against a request for each question.

    python benchmarks/decisions.py [--questions 1000] [--tokens 1500] [--plain 50] [--keep]

The document is the beginning of this project's licence. Requests for each question are selects, one after the other:
with the prefix cache, which still has the document, and for the first --plain questions without it. --keep writes
results/decisions.txt.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path

from bench_results import keep_text

import sgl
from sgl.tasks.questions import Question

LICENCE = Path(__file__).parents[1] / "LICENSE"


@sgl.function
def ask_one(s: sgl.State, text: str, question: Question):
    s += sgl.user(text + "\n\n" + sgl.labels(question.labels, question.task).text())
    s += sgl.assistant(sgl.select("answer", list(question.labels), choices_method=sgl.answer_likelihood))
    return question.answer(s.probs("answer"))


def document(engine: sgl.Engine, tokens: int) -> str:
    text = LICENCE.read_text(encoding="utf-8")
    return engine.tokenizer.decode(engine.tokenizer.encode(text)[:tokens].tolist())


def thousand(text: str, count: int) -> list[Question]:
    """Predicates, choices and scores in turn, on the words of the text."""
    words = sorted(set(re.findall(r"[a-z]{5,}", text.lower())))
    named = [f"{words[index % len(words)]} {index // len(words) + 1}" for index in range(count)]
    return [KINDS[index % len(KINDS)](word) for index, word in enumerate(named)]


def rule(word: str) -> Question:
    return sgl.predicate(f"The text has a rule about {word}.")


def says(word: str) -> Question:
    return sgl.choice(f"What does the text say about {word}?", ["allowed", "forbidden", "nothing"])


def clear(word: str) -> Question:
    return sgl.score(f"How clear is the text about {word}?", ["unclear", "clear", "very clear"])


KINDS = (rule, says, clear)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=1500, help="of the document")
    parser.add_argument("--plain", type=int, default=50, help="questions that are asked without the prefix cache too")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    lines = ["way  questions  seconds  ms a question  tokens computed  a question  steps"]
    with sgl.Engine() as engine:
        text = document(engine, args.tokens)
        questions = thousand(text, args.questions)
        sgl.decide("A short text.", questions[:3], backend=engine)

        def row(way: str, count: int, work) -> list:
            engine.flush_cache()
            before, started = engine.stats(), time.perf_counter()
            answers = work()
            seconds, spent = time.perf_counter() - started, engine.stats() - before
            lines.append(
                f"{way}  {count}  {seconds:.2f}  {1000 * seconds / count:.1f}  {spent.computed_tokens}  "
                f"{spent.computed_tokens / count:.1f}  {spent.steps}"
            )
            print(lines[-1], flush=True)
            return answers

        def uncached(question: Question):
            engine.flush_cache()
            return ask_one.run(text, question, backend=engine).ret_value

        print(lines[0])
        together = row("one decide", len(questions), lambda: sgl.decide(text, questions, backend=engine).answers)
        alone = row(
            "a select each",
            len(questions),
            lambda: [ask_one.run(text, question, backend=engine).ret_value for question in questions],
        )
        row("a select each, no cache", args.plain, lambda: [uncached(question) for question in questions[: args.plain]])
    worst = max(
        abs(a - b)
        for one, other in zip(together, alone, strict=True)
        for a, b in zip(probs(one), probs(other), strict=True)
    )
    lines.append(f"\nlargest difference of a probability between the two ways: {worst:.4f}")
    lines.append(f"load average at the end: {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    print("\n".join(lines[-2:]))
    if args.keep:
        keep_text("decisions", "\n".join(lines) + "\n")


def probs(answer) -> list[float]:
    return [answer.probability] if answer.type == "predicate" else [each.probability for each in answer.probabilities]


if __name__ == "__main__":
    main()
