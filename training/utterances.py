"""SNIPS: the intent of an utterance and its slots, varied so that names and orders are read, not learnt."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

from sgl.runtime.nano.nano_prompts import (
    EXTRACT_TASK,
    Message,
    PromptField,
    extraction,
    intent_choice,
    json_text,
    message,
)
from training.lexicon import NAME_STYLES, Lexicon
from training.values import Pools, held_back, rows

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
SLOTS = {
    "playlist": "name of the playlist",
    "playlist_owner": "whose playlist it is, as my",
    "music_item": "song, album, track or tune",
    "artist": "singer or band",
    "entity_name": "title to add",
    "restaurant_type": "kind of place to eat at, as bar or diner",
    "party_size_number": "how many people",
    "timeRange": "when",
    "state": "state of the country",
    "city": "town",
    "country": "country",
    "restaurant_name": "name of the restaurant",
    "party_size_description": "who comes along",
    "spatial_relation": "how far or near",
    "served_dish": "dish to eat",
    "cuisine": "kitchen of a country",
    "sort": "quality, as best or popular",
    "facility": "what the place offers",
    "poi": "near which place",
    "condition_temperature": "cold, warm and the like",
    "condition_description": "rain, snow, sun and the like",
    "geographic_poi": "park, island or landmark",
    "current_location": "words for here",
    "service": "music service",
    "year": "year or decade",
    "track": "title of the track",
    "album": "title of the album",
    "genre": "kind of music",
    "rating_value": "how many stars are given",
    "rating_unit": "stars or points",
    "best_rating": "highest possible rating",
    "object_select": "which one, as this or current",
    "object_name": "title",
    "object_type": "kind of work",
    "object_part_of_series_type": "series, saga or chapter",
    "movie_name": "title of the film",
    "movie_type": "films or movies of a kind",
    "location_name": "name of the cinema",
    "object_location_type": "kind of place that shows films",
}
"""What the slots are, for prompts whose names say nothing."""
Row = dict[str, Any]


def slot_fields(rows: list[Row]) -> dict[str, tuple[PromptField, ...]]:
    """The slots of each intent, most frequent first: the fields that a prompt lists."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for slot in row["slots"]:
            counts[row["intent"]][slot] += 1
    return {
        intent: tuple(PromptField(name) for name in sorted(slots, key=lambda name: (-slots[name], name)))
        for intent, slots in sorted(counts.items())
    }


def intent_prompt(utterance: str) -> list[Message]:
    """The canonical question for the intent."""
    return intent_choice(INTENTS.items(), utterance)


def slots_prompt(fields: tuple[PromptField, ...], utterance: str) -> list[Message]:
    """The canonical question for the slots of a known intent."""
    return extraction(fields, utterance)


def slots_answer(fields: tuple[PromptField, ...], slots: dict[str, str]) -> dict[str, str]:
    """The slots in the order of the fields."""
    return {field.name: slots[field.name] for field in fields if field.name in slots}


class Utterances:
    """Composes intent and slot examples from the training rows of SNIPS."""

    def __init__(self, rng: Random, data: Path, pools: Pools) -> None:
        self.rng = rng
        self.lexicon = Lexicon(rng, pools)
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
        if rng.random() < 0.25:
            names = self._other_names(fields)
            answer = {names[slot].name: value for slot, value in answer.items()}
            fields = [names[field.name] for field in fields]
        return [*extraction(fields, row["text"], EXTRACT_TASK), message("assistant", json_text(answer))]

    def _other_names(self, fields: list[PromptField]) -> dict[str, PromptField]:
        """Fields of other names by slot, each with its description, or in another style."""
        rng = self.rng
        self.lexicon.restart()
        style = self.lexicon.style(NAME_STYLES)
        foreign = rng.choice([0.0, 0.3, 1.0])
        names: dict[str, PromptField] = {}
        for field in fields:
            strange = rng.random() < foreign
            words = self.lexicon.phrase(2, 2) if strange else tuple(field.name.split("_"))
            described = strange or rng.random() < 0.5
            names[field.name] = PromptField(style(words), description=SLOTS.get(field.name, "") if described else "")
        return names


def _whole(text: str, value: str) -> tuple[str, str, str]:
    """The text before, the value and the text after it, if it stands there as whole words; else empty."""
    found = re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text)
    return (text[: found.start()], value, text[found.end() :]) if found else ("", "", "")
