"""SNIPS: the intent of an utterance and its slots, varied so that names and orders are read, not learnt."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

from sgl.runtime.nano.prompts import (
    EXTRACT_TASK,
    Field,
    Message,
    extraction,
    intent_choice,
    json_text,
    message,
)
from training.values import held_back, rows

INTENTS = {
    "AddToPlaylist": "add a song or artist to a playlist",
    "BookRestaurant": "reserve a table at a restaurant",
    "GetWeather": "ask for the weather",
    "PlayMusic": "play music",
    "RateBook": "give a rating to a book",
    "SearchCreativeWork": "find a book, film, song, game or show",
    "SearchScreeningEvent": "find when and where a film is shown",
}
OTHER_NAMES = {
    "AddToPlaylist": ("playlist_add", "extend_playlist", "add_song"),
    "BookRestaurant": ("restaurant_booking", "reserve_table", "BookTable"),
    "GetWeather": ("weather", "weather_report", "AskWeather"),
    "PlayMusic": ("music", "play_song", "StartMusic"),
    "RateBook": ("rating", "book_rating", "GiveStars"),
    "SearchCreativeWork": ("find_work", "search_media", "LookupTitle"),
    "SearchScreeningEvent": ("cinema", "movie_times", "FindShowtimes"),
}
Row = dict[str, Any]


def slot_fields(rows: list[Row]) -> dict[str, tuple[Field, ...]]:
    """The slots of each intent, most frequent first: the fields that a prompt lists."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for slot in row["slots"]:
            counts[row["intent"]][slot] += 1
    return {
        intent: tuple(Field(name) for name in sorted(slots, key=lambda name: (-slots[name], name)))
        for intent, slots in sorted(counts.items())
    }


def intent_prompt(utterance: str) -> list[Message]:
    """The canonical question for the intent."""
    return intent_choice(INTENTS.items(), utterance)


def slots_prompt(fields: tuple[Field, ...], utterance: str) -> list[Message]:
    """The canonical question for the slots of a known intent."""
    return extraction(fields, utterance)


def slots_answer(fields: tuple[Field, ...], slots: dict[str, str]) -> dict[str, str]:
    """The slots in the order of the fields."""
    return {field.name: slots[field.name] for field in fields if field.name in slots}


class Utterances:
    """Composes intent and slot examples from the training rows of SNIPS."""

    def __init__(self, rng: Random, data: Path) -> None:
        self.rng = rng
        self.rows = [row for row in rows(data / "snips-train.jsonl.gz") if not held_back(row["text"])]
        self.fields = slot_fields(self.rows)
        self.values: dict[str, list[str]] = defaultdict(list)
        for row in self.rows:
            for slot, value in row["slots"].items():
                self.values[slot].append(value)

    def messages(self) -> list[Message]:
        row = self._varied(self.rng.choice(self.rows))
        return self._intent(row) if self.rng.random() < 0.35 else self._slots(row)

    def _varied(self, row: Row) -> Row:
        """Half of the rows get other values for their slots, as other rows have them."""
        text, slots = row["text"].strip(), dict(row["slots"])
        if self.rng.random() < 0.5:
            for slot, value in row["slots"].items():
                if self.rng.random() < 0.6 and text.count(value) == 1 and self._alone(slot, slots):
                    other = self.rng.choice(self.values[slot])
                    before, found, after = _whole(text, value)
                    if found:
                        text, slots[slot] = before + other + after, other
        return {"text": text, "intent": row["intent"], "slots": slots}

    @staticmethod
    def _alone(slot: str, slots: dict[str, str]) -> bool:
        """Whether the value is no part of another slot's value, so that replacing it is safe."""
        return not any(slots[slot] in value for name, value in slots.items() if name != slot)

    def _intent(self, row: Row) -> list[Message]:
        rng = self.rng
        if rng.random() < 0.4:
            return [*intent_prompt(row["text"]), message("assistant", row["intent"])]
        names = {intent: self._intent_name(intent) for intent in INTENTS}
        others = [intent for intent in INTENTS if intent != row["intent"]]
        offered = [row["intent"], *rng.sample(others, rng.randint(1, len(others)))]
        rng.shuffle(offered)
        described = rng.random() < 0.5
        pairs = [(names[intent], INTENTS[intent] if described else "") for intent in offered]
        return [*intent_choice(pairs, row["text"]), message("assistant", names[row["intent"]])]

    def _intent_name(self, intent: str) -> str:
        return intent if self.rng.random() < 0.5 else self.rng.choice(OTHER_NAMES[intent])

    def _slots(self, row: Row) -> list[Message]:
        rng = self.rng
        fields = list(self.fields[row["intent"]])
        if rng.random() < 0.4:
            rng.shuffle(fields)
            if rng.random() < 0.5:
                fields = fields[: rng.randint(1, len(fields))]
        answer = slots_answer(tuple(fields), row["slots"])
        return [*extraction(fields, row["text"], EXTRACT_TASK), message("assistant", json_text(answer))]


def _whole(text: str, value: str) -> tuple[str, str, str]:
    """The text before, the value and the text after it, if it stands there as whole words; else empty."""
    found = re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text)
    return (text[: found.start()], value, text[found.end() :]) if found else ("", "", "")
