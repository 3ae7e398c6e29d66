"""A panel of judges: forks judge a review by several dimensions with `select`, a verdict as JSON sums them up.

    python examples/judge.py                                 # 16 reviews with known verdicts
    python examples/judge.py "The app is slow and crashes."  # your own

Three judges of the mood use different words; their probabilities are averaged, and disagreement is a reason to look.
The bundled model wants the labels before the text, so its forks share only their first words. For a larger model, put
the
review before the fork, where it is read once, and ask what needs thought ("is it fair?"). The bundled one goes by
single
words and is often wrong: it takes "The soup was cold again." for praise.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal, get_args

import sgl

MOODS = (("positive", "negative"), ("good", "bad"), ("happy", "unhappy"))
Topic = Literal["travel", "food", "technology", "music", "sports"]
TOPICS = get_args(Topic)
REVIEWS = {
    "The hotel in Porto was lovely and quiet, we slept like stones.": ("positive", "travel"),
    "Worst pizza ever: cold, dry and far too salty.": ("negative", "food"),
    "The phone is fast and the battery is excellent.": ("positive", "technology"),
    "My new laptop broke after a day, terrible.": ("negative", "technology"),
    "The train to Madrid was dirty and late.": ("negative", "travel"),
    "Great concert, the singer was wonderful.": ("positive", "music"),
    "The soup was delicious and the waiter friendly.": ("positive", "food"),
    "A boring album, I want my money back.": ("negative", "music"),
    "The team played an excellent match.": ("positive", "sports"),
    "The software update is awful and slow.": ("negative", "technology"),
    "I love this restaurant, fresh fish and good bread.": ("positive", "food"),
    "The band was bad and much too loud.": ("negative", "music"),
    "A terrible flight to Oslo, cramped and cold.": ("negative", "travel"),
    "She scored in the final, a fantastic race to watch.": ("positive", "sports"),
    "Beautiful beach near the hotel, we will come again.": ("positive", "travel"),
    "The coach was rude and the game disappointing.": ("negative", "sports"),
}


@dataclass
class Verdict:
    mood: Literal["positive", "negative"]
    topic: Topic
    look_again: bool


@sgl.function
def judge(s: sgl.State, review: str) -> dict[str, Any]:
    forks = s.fork(len(MOODS) + 1)
    for branch, labels in zip(forks, (*MOODS, TOPICS), strict=True):
        branch += sgl.system(sgl.labels(labels))
        branch += sgl.user(review) + sgl.assistant(sgl.select("choice", labels))
    good = [branch.probs("choice")[labels[0]] for branch, labels in zip(forks, MOODS, strict=False)]
    mean = sum(good) / len(good)
    mood, topic = MOODS[0][mean < 0.5], forks[-1]["choice"]
    doubt = min(good) < 0.5 < max(good)
    s += sgl.system(sgl.fields(Verdict))
    s += sgl.user(f"{review}\nmood: {mood}, topic: {topic}, look again: {'yes' if doubt else 'no'}")
    s += sgl.assistant(sgl.gen("verdict", Verdict, max_tokens=60, temperature=0))
    return {"good": good, "verdict": s.get("verdict")}


def main() -> None:
    reviews = sys.argv[1:] or list(REVIEWS)
    with sgl.Engine() as engine:
        states = judge.run_batch([{"review": review} for review in reviews], backend=engine)
    results = [state.ret_value for state in states]
    print("three judges: P(good)  verdict")
    for review, result in zip(reviews, results, strict=True):
        verdict = result["verdict"]
        known = REVIEWS.get(review, (verdict.mood, verdict.topic))
        wrong = [value for value, given in zip(known, (verdict.mood, verdict.topic), strict=True) if value != given]
        mistakes = f"  WRONG: {', '.join(wrong)}" if wrong else ""
        print(f"{' '.join(f'{p:6.0%}' for p in result['good'])}   {verdict}{mistakes}\n{'':23} {review}")
    known_ones = [
        (REVIEWS[review], result) for review, result in zip(reviews, results, strict=True) if review in REVIEWS
    ]
    if known_ones:
        for i, labels in enumerate(MOODS):
            print(
                f"{'/'.join(labels):18} "
                f"{sum((result['good'][i] > 0.5) == (mood == 'positive') for (mood, _), result in known_ones)} of "
                f"{len(known_ones)} right"
            )
        for i, name in enumerate(("mood", "topic")):
            print(
                f"{'verdict: ' + name:18} "
                f"{sum(getattr(result['verdict'], name) == known[i] for known, result in known_ones)} of "
                f"{len(known_ones)} right"
            )
    print(sgl.Usage.total(state.usage() for state in states))


if __name__ == "__main__":
    main()
