"""Made-up text, the same in every run: people, places, and sentences about them."""

from __future__ import annotations

import random

PEOPLE = (
    "Anna Weber",
    "Omar Haddad",
    "Mia Rossi",
    "Lars Berg",
    "Rita Lopes",
    "Jana Novak",
    "Carlos Ruiz",
    "Eva Lind",
    "Tom Baker",
    "Nina Petrova",
    "Aisha Khan",
    "Paul Martin",
)
CITIES = (
    "Lisbon",
    "Oslo",
    "Prague",
    "Madrid",
    "Cairo",
    "Rome",
    "Vienna",
    "Dublin",
    "Athens",
    "Berlin",
    "Porto",
    "Geneva",
)
JOBS = ("a baker", "a teacher", "a nurse", "a painter", "a librarian", "a gardener", "an engineer", "a shop owner")
SUBJECTS = (
    "The manager",
    "Our guide",
    "The report",
    "A neighbour",
    "The committee",
    "The new train",
    "The hotel",
    "A customer",
    "The museum",
    "My sister",
)
VERBS = (
    "recommends",
    "mentions",
    "opened",
    "changed",
    "describes",
    "is looking for",
    "has cancelled",
    "would like to see",
    "pays for",
    "asked about",
)
OBJECTS = (
    "the old market",
    "a quiet room",
    "two tickets for the concert",
    "the opening hours",
    "a table near the window",
    "the price of the tour",
    "the weather in the north",
    "a longer contract",
    "the second edition",
    "an early breakfast",
)
ENDS = (
    "this week",
    "on Monday",
    "for the first time",
    "without a reason",
    "because of the rain",
    "before the holidays",
    "in the afternoon",
    "together with a friend",
    "near the station",
    "at half the price",
)


def rng(name: str, index: int) -> random.Random:
    """Random numbers of one item of a workload."""
    return random.Random(f"{name} {index}")


def sentences(source: random.Random, count: int) -> str:
    """So many sentences of about ten tokens."""
    parts = (
        f"{source.choice(SUBJECTS)} {source.choice(VERBS)} {source.choice(OBJECTS)} {source.choice(ENDS)}."
        for _ in range(count)
    )
    return " ".join(parts)
