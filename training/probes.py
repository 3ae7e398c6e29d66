"""Held-back examples: questions with their right answers, none of which training has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from sgl.runtime.nano.nano_prompts import (
    Message,
    PromptField,
    dialogue_prefix,
    extraction,
    intent_names,
    json_text,
    message,
    schema_of,
    service_question,
    state_fields,
)
from training.dialogues import load_services, state_answer, turns_until
from training.synthetic import Split, documents
from training.utterances import INTENTS, intent_prompt, slot_fields, slots_answer, slots_prompt
from training.values import held_back, load_pools, rows


@dataclass(frozen=True)
class Probe:
    """A prompt and its right answer: one of `choices`, or JSON by `schema`."""

    task: str
    prompt: list[Message]
    answer: str
    choices: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class StateProbe:
    """One service at one user turn of a dialogue, with its annotated intent and slots."""

    service: dict[str, Any]
    prompt: list[Message]
    intent: str
    slots: dict[str, str]
    seen: bool

    def parts(self) -> tuple[Probe, Probe]:
        """The intent, and the slots after the right intent."""
        intent, slots = state_answer(self.service, (self.intent, self.slots))
        schema = schema_of(state_fields(self.service))
        kind = "seen" if self.seen else "unseen"
        return (
            Probe(f"sgd-{kind}-intent", self.prompt, intent["content"], tuple(intent_names(self.service))),
            Probe(f"sgd-{kind}-slots", [*self.prompt, intent], slots["content"], schema=schema),
        )


def held_back_utterances(data: Path) -> list[dict[str, Any]]:
    return [row for row in rows(data / "snips-train.jsonl.gz") if held_back(row["text"])]


def snips_fields(data: Path) -> dict[str, tuple[PromptField, ...]]:
    """The slots of each intent as the training rows have them."""
    return slot_fields([row for row in rows(data / "snips-train.jsonl.gz") if not held_back(row["text"])])


def snips_intents(data: Path) -> Iterator[Probe]:
    for row in held_back_utterances(data):
        yield Probe("snips-intent", intent_prompt(row["text"].strip()), row["intent"], tuple(INTENTS))


def snips_slots(data: Path) -> Iterator[Probe]:
    fields = snips_fields(data)
    for row in held_back_utterances(data):
        asked = fields[row["intent"]]
        answer = json_text(slots_answer(asked, row["slots"]))
        yield Probe("snips-slots", slots_prompt(asked, row["text"].strip()), answer, schema=schema_of(asked))


def states(data: Path, seen: bool) -> Iterator[StateProbe]:
    """All annotated frames of the dev dialogues, of services that training has seen or has not."""
    services = load_services(data / "sgd-dev-services.json")
    known = load_services(data / "sgd-train-services.json")
    for dialogue in rows(data / "sgd-dev.jsonl.gz"):
        for index, turn in enumerate(dialogue["turns"]):
            for frame in turn.get("state", ()):
                service = services[frame["service"]]
                if (frame["service"] in known) == seen:
                    prompt = [*dialogue_prefix(turns_until(dialogue, index)), service_question(service)]
                    yield StateProbe(service, prompt, frame["intent"], frame["slots"], seen)


def state_parts(data: Path, seen: bool, part: int) -> Iterator[Probe]:
    for probe in states(data, seen):
        yield probe.parts()[part]


def unseen_documents(data: Path, split: Split, count: int = 600, seed: int = 9) -> Iterator[Probe]:
    """Documents whose schemas use names ("names") or come from domains ("domains") never trained on."""
    composer = documents(Random(seed), load_pools(data), split)
    for _ in range(count):
        example = composer.make()
        prompt = extraction(example.fields, example.document)
        yield Probe(f"documents-{split}", prompt, json_text(example.answer), schema=schema_of(example.fields))


PROBES: dict[str, Callable[[Path], Iterable[Probe]]] = {
    "snips-intent": snips_intents,
    "snips-slots": snips_slots,
    "sgd-seen-intent": partial(state_parts, seen=True, part=0),
    "sgd-seen-slots": partial(state_parts, seen=True, part=1),
    "sgd-unseen-intent": partial(state_parts, seen=False, part=0),
    "sgd-unseen-slots": partial(state_parts, seen=False, part=1),
    "documents-names": partial(unseen_documents, split="names"),
    "documents-domains": partial(unseen_documents, split="domains"),
}


def sample(data: Path, task: str, count: int, seed: int = 0) -> list[Probe]:
    """At most `count` probes of a task, chosen at random but always the same."""
    probes = list(PROBES[task](data))
    return Random(seed).sample(probes, min(count, len(probes)))


def conversation(probe: Probe) -> list[Message]:
    return [*probe.prompt, message("assistant", probe.answer)]
