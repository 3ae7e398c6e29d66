"""Schema-Guided Dialogue: the state of a dialogue per service, and the same dialogues as tool use.

The state at a user turn is what the data set annotates; a service that is silent at that turn keeps
its last annotation, one that was never used has the intent NONE and no slots.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from sgl.runtime.nano.nano_prompts import (
    CHAT_TASK,
    NONE_INTENT,
    Message,
    PromptField,
    PromptTool,
    dialogue_prefix,
    json_text,
    message,
    service_question,
    state_fields,
    tool_answer,
    tool_call,
    tool_result,
    tools_system,
)
from training.lexicon import Lexicon
from training.values import LISTS, SGD_POOLS, Pools, rows

Dialogue = dict[str, Any]
Service = dict[str, Any]
State = tuple[str, dict[str, str]]

NAMINGS = ("camel", "spaced", "described", "described", "number", "words", "foreign", "foreign")
NAME_KINDS = {slot: kind for kind, slots in SGD_POOLS.items() for slot in slots.split()}


def load_services(path: Path) -> dict[str, Service]:
    return {service["service_name"]: service for service in json.loads(path.read_text(encoding="utf-8"))}


def turns_until(dialogue: Dialogue, turn: int) -> list[tuple[str, str]]:
    """The (speaker, utterance) pairs up to and with a turn."""
    return [(t["speaker"], t["utterance"]) for t in dialogue["turns"][: turn + 1]]


def state_at(dialogue: Dialogue, turn: int, service: str) -> State:
    """The intent and slots of a service after a user turn."""
    for earlier in reversed(dialogue["turns"][: turn + 1]):
        for frame in earlier.get("state", ()):
            if frame["service"] == service:
                return frame["intent"], frame["slots"]
    return NONE_INTENT, {}


def ordered_slots(service: Service, slots: dict[str, str]) -> dict[str, str]:
    """The slots in the order of the schema, as the JSON answer lists them."""
    return {field.name: slots[field.name] for field in state_fields(service) if field.name in slots}


def state_answer(service: Service, state: State) -> list[Message]:
    """The two assistant turns for one service: the intent, then the slots as JSON."""
    intent, slots = state
    return [message("assistant", intent), message("assistant", json_text(ordered_slots(service, slots)))]


class Dialogues:
    """Composes examples from the training dialogues."""

    def __init__(self, rng: Random, data: Path, pools: Pools) -> None:
        self.rng = rng
        self.pools = pools
        self.lexicon = Lexicon(rng, pools)
        self.rows = list(rows(data / "sgd-train.jsonl.gz"))
        self.services = load_services(data / "sgd-train-services.json")

    # --- the state, one service at a time ---

    def messages(self) -> list[Message]:
        rng = self.rng
        dialogue = rng.choice(self.rows)
        if rng.random() < 0.4:
            dialogue = self.renamed(dialogue)
        turns = [i for i, t in enumerate(dialogue["turns"]) if t["speaker"] == "user"]
        whole = rng.random() < 0.35
        turn = rng.choice(turns[len(turns) // 2 :] if whole else turns)
        messages = dialogue_prefix(turns_until(dialogue, turn))
        services = list(dialogue["services"]) if whole else self._asked_services(dialogue, turn)
        for name in rng.sample(services, len(services)):
            service, state = self.varied(self.services[name], state_at(dialogue, turn, name))
            messages += [service_question(service), *state_answer(service, state)]
        return messages

    def _asked_services(self, dialogue: Dialogue, turn: int) -> list[str]:
        """Mostly the services that the turn speaks of; now and then another one of the dialogue, or any."""
        rng = self.rng
        active = [frame["service"] for frame in dialogue["turns"][turn]["state"]]
        draw = rng.random()
        if draw < 0.04:
            return [rng.choice(list(self.services))]
        if draw < 0.15:
            return rng.sample(dialogue["services"], rng.randint(1, len(dialogue["services"])))
        return active

    def renamed(self, dialogue: Dialogue) -> Dialogue:
        """The dialogue with other names for places, people and titles, so that names must be copied."""
        kinds = {
            value: NAME_KINDS[slot]
            for turn in dialogue["turns"]
            for frame in turn.get("state", ())
            for slot, value in frame["slots"].items()
            if slot in NAME_KINDS and len(value) > 3 and value[0].isupper()
        }
        others = {value: self.pools.pick(kind, self.rng) or value for value, kind in kinds.items()}
        if not others:
            return dialogue
        longest_first = sorted(others, key=len, reverse=True)
        pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")
        return {
            **dialogue,
            "turns": [self._renamed_turn(turn, pattern, others) for turn in dialogue["turns"]],
        }

    def _renamed_turn(self, turn: dict[str, Any], pattern: re.Pattern[str], others: dict[str, str]) -> Any:
        frames = [
            {**frame, "slots": {slot: others.get(value, value) for slot, value in frame["slots"].items()}}
            for frame in turn.get("state", ())
        ]
        utterance = pattern.sub(lambda found: others[found.group()], turn["utterance"])
        return {**turn, "utterance": utterance, "state": frames}

    def varied(self, service: Service, state: State) -> tuple[Service, State]:
        """Half of the services come in another shape: order, names, descriptions, fewer slots."""
        rng = self.rng
        if rng.random() < 0.5:
            return service, state
        slots = rng.sample(service["slots"], len(service["slots"]))
        if rng.random() < 0.4:
            slots = slots[: rng.randint(1, len(slots))]
        intents = rng.sample(service["intents"], len(service["intents"]))
        style = rng.choice(NAMINGS) if rng.random() < 0.75 else "kept"
        slot_names = self._new_names(slots, style)
        intent_names = self._new_names(intents, style)
        undescribed = rng.random() < 0.3 and style not in ("number", "foreign")
        service_names = [
            service["service_name"],
            service["service_name"].split("_")[0],
            self.lexicon.word().capitalize(),
        ]
        other = {
            "service_name": rng.choices(service_names, weights=[6, 2, 2])[0],
            "description": "" if undescribed else service["description"],
            "slots": [_renamed_item(slot, slot_names[slot["name"]], undescribed) for slot in slots],
            "intents": [_renamed_intent(intent, intent_names, slot_names, undescribed) for intent in intents],
        }
        intent, values = state
        kept = {slot_names[slot]: value for slot, value in values.items() if slot in slot_names}
        return other, (intent_names.get(intent, intent), kept)

    def _new_names(self, items: list[dict[str, Any]], style: str) -> dict[str, str]:
        """Other names for slots or intents: another case, words of the description, a number, or foreign words."""
        self.lexicon.restart()
        names = {item["name"]: self._new_name(item, style) for item in items}
        clash = len(set(names.values())) < len(names)
        return {name: name for name in names} if clash else names

    def _new_name(self, item: dict[str, Any], style: str) -> str:
        words = re.findall(r"[A-Z]?[a-z]+|\d+|[A-Z]+", item["name"].replace("_", " "))
        match style:
            case "kept":
                return item["name"]
            case "camel":
                return words[0].lower() + "".join(word.capitalize() for word in words[1:])
            case "spaced":
                return " ".join(words).lower()
            case "words":
                return "_".join(words).lower()
            case "number":
                return f"slot_{self.rng.randint(1, 60)}"
            case "foreign":
                return "_".join(self.lexicon.phrase(1, 2))
            case _:
                told = [w for w in re.findall(r"[a-z]+", item["description"].lower()) if w not in LISTS["stop_words"]]
                return "_".join(told[: self.rng.randint(2, 4)]) or item["name"]

    # --- the same dialogues as tool use and as chat ---

    def tool_use(self) -> list[Message]:
        rng = self.rng
        dialogue = rng.choice(self.rows)
        names = list(dialogue["services"])
        names += rng.sample(sorted(self.services), rng.choice([0, 0, 1]))
        tools = {
            intent["name"]: _tool_of(self.services[name], intent)
            for name in names
            for intent in self.services[name]["intents"]
        }
        offered = rng.sample(list(tools.values()), len(tools))
        if rng.random() < 0.3:
            offered = [replace(tool, description="") for tool in offered]
        messages = [tools_system(offered)]
        for index, turn in enumerate(dialogue["turns"]):
            if turn["speaker"] == "user":
                messages.append(message("user", turn["utterance"]))
            else:
                messages += self._system_turn(dialogue, index)
        return messages

    def _system_turn(self, dialogue: Dialogue, index: int) -> list[Message]:
        turn = dialogue["turns"][index]
        messages: list[Message] = []
        if call := turn.get("service_call"):
            _, slots = state_at(dialogue, index, call["service"])
            wanted = {name: slots[name] for name in call["parameters"] if name in slots}
            arguments = ordered_slots(self.services[call["service"]], wanted)
            results = turn.get("service_results") or [{}]
            messages = [*tool_call(call["method"], arguments), tool_result(results[0])]
        return [*messages, *tool_answer(turn["utterance"])]

    def chat(self) -> list[Message]:
        turns = self.rng.choice(self.rows)["turns"]
        roles = {"user": "user", "system": "assistant"}
        return [message("system", CHAT_TASK), *(message(roles[t["speaker"]], t["utterance"]) for t in turns)]


def _tool_of(service: Service, intent: dict[str, Any]) -> PromptTool:
    taken = {*intent["required_slots"], *intent["optional_slots"]}
    fields = [field for field in state_fields(service) if field.name in taken]
    plain = tuple(PromptField(f.name, f.kind, choices=tuple(c for c in f.choices if c != "dontcare")) for f in fields)
    return PromptTool(intent["name"], intent["description"], plain)


def _renamed_item(item: dict[str, Any], name: str, undescribed: bool) -> dict[str, Any]:
    return {**item, "name": name, "description": "" if undescribed else item["description"]}


def _renamed_intent(
    intent: dict[str, Any], intent_names: dict[str, str], slot_names: dict[str, str], undescribed: bool
) -> dict[str, Any]:
    return {
        **_renamed_item(intent, intent_names[intent["name"]], undescribed),
        "required_slots": [slot_names[slot] for slot in intent["required_slots"] if slot in slot_names],
        "optional_slots": {slot_names[s]: v for s, v in intent["optional_slots"].items() if s in slot_names},
    }
