"""Conversations of an assistant with tools: the request, the call as JSON, the result, the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from sgl.runtime.nano.nano_prompts import Message, PromptField, PromptTool, message, tool_answer, tools_system
from training.exchanges import Exchange, conversation, failure
from training.foreign import ForeignTools
from training.sums import Sums
from training.synthetic import Catalogue, Concept, Documents
from training.values import Pools, Values

TOOLS = Path(__file__).with_name("tools.txt")

POLITE = ("", "", "", "Please: ", "Hi! ", "Hello, ", "Can you help? ", "Hey, ", "One question: ")
NO_TOOL = (
    "I have no tool for that.",
    "Sorry, I have no tool that can do this.",
    "I cannot do that with my tools.",
)
VERBS = {
    "create": ("saves a new {}", "Create a new {}. ", "New {}: "),
    "update": ("changes a {}", "Update the {}. ", "Change the {}: "),
    "submit": ("sends a {}", "Submit this {}. ", "Send in a {}: "),
    "register": ("registers a {}", "Register the {}. ", "Please register a {}. "),
}


@dataclass(frozen=True)
class ToolPattern:
    """A line of tools.txt: how a tool may be called, asked for, and how it answers."""

    names: tuple[str, ...]
    description: str
    parameters: tuple[tuple[tuple[str, ...], str], ...]
    requests: tuple[str, ...]
    result: tuple[tuple[str, str], ...]
    answers: tuple[str, ...]


def load_tools(path: Path = TOOLS) -> list[ToolPattern]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [_parse_tool(line) for line in lines if line and not line.startswith("#")]


def _parse_tool(line: str) -> ToolPattern:
    names, description, parameters, requests, result, answers = (part.strip() for part in line.split(" | "))
    return ToolPattern(
        tuple(name.strip() for name in names.split(",")),
        description,
        tuple((tuple(key.split("/")), kind) for key, kind in _typed(parameters)),
        _sentences(requests),
        tuple(_typed(result)),
        _sentences(answers),
    )


def _typed(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(";"):
        name, _, kind = part.strip().partition(":")
        yield name, kind


def _sentences(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


class Agents:
    """Composes conversations with tools from a seeded generator."""

    def __init__(self, rng: Random, pools: Pools, catalogue: Catalogue) -> None:
        self.rng = rng
        self.values = Values(rng, pools)
        self.patterns = load_tools()
        self.forms = Documents(rng, pools, catalogue)
        self.sums = Sums(rng)
        self.foreign = ForeignTools(rng, pools)

    def messages(self) -> list[Message]:
        """One system turn with tools, then one to three requests that use some of them or none."""
        rng = self.rng
        exchanges = self._different(rng.choice([1, 1, 2, 3]) + rng.randint(0, 4))
        tools = [exchange.tool for exchange in exchanges]
        turns = [exchange.turns for exchange in exchanges[: rng.choice([1, 1, 2, 3])]]
        if rng.random() < 0.3:
            turns.insert(rng.randint(0, len(turns)), self.small_talk())
        if rng.random() < 0.15:
            turns.append(self._unanswerable({exchange.family for exchange in exchanges}))
        rng.shuffle(tools)
        return [tools_system(tools), *(message for turn in turns for message in turn)]

    def _different(self, count: int) -> list[Exchange]:
        drawn = [self.exchange() for _ in range(count)]
        by_family = {exchange.family: exchange for exchange in drawn}
        return list({exchange.tool.name: exchange for exchange in by_family.values()}.values())

    def exchange(self) -> Exchange:
        draw = self.rng.random()
        if draw < 0.25:
            return self.sums.call()
        if draw < 0.4:
            return self.form_call()
        return self.foreign.call() if draw < 0.6 else self.pattern_call()

    def small_talk(self) -> list[Message]:
        from training.manners import SMALL_TALK

        asked, answers = self.rng.choice(SMALL_TALK)
        return [message("user", self.rng.choice(asked)), *tool_answer(self.rng.choice(answers))]

    def _unanswerable(self, families: set[str]) -> list[Message]:
        pattern = self.rng.choice([p for p in self.patterns if p.names[0] not in families])
        request, _ = self._request(pattern, self._arguments(pattern))
        return [message("user", request), *tool_answer(self.rng.choice(NO_TOOL))]

    # --- tools of tools.txt ---

    def pattern_call(self) -> Exchange:
        rng = self.rng
        pattern = rng.choice(self.patterns)
        drawn = self._arguments(pattern)
        request, used = self._request(pattern, drawn)
        names = {keys[0]: keys[0] if rng.random() < 0.5 else rng.choice(keys) for keys, _ in pattern.parameters}
        if len(set(names.values())) < len(names):
            names = {key: key for key in names}
        tool = self._offer(pattern, names)
        arguments = {names[key]: drawn[key][1] for key in names if key in used}
        result = {key: self.values.draw(kind) for key, kind in pattern.result}
        shown = {key: text for key, (text, _) in drawn.items() if key in used}
        shown |= {key: self._spoken(text, value) for key, (text, value) in result.items()}
        answer = self._filled(pattern.answers, shown) or "Done."
        values = {
            key: text if kind.startswith("money") else value
            for (key, kind), (text, value) in zip(pattern.result, result.values(), strict=True)
        }
        if rng.random() < 0.35:
            values = {**dict(rng.sample(list(arguments.items()), min(1, len(arguments)))), **values}
        if rng.random() < 0.06:
            values, answer = failure(rng, arguments)
        return Exchange(pattern.names[0], tool, conversation(request, tool, arguments, values, answer))

    def _spoken(self, text: str, value: Any) -> str:
        return ", ".join(value) if isinstance(value, list) else text if isinstance(value, str) else str(text)

    def _arguments(self, pattern: ToolPattern) -> dict[str, tuple[str, Any]]:
        return {keys[0]: self.values.draw(kind) for keys, kind in pattern.parameters}

    def _request(self, pattern: ToolPattern, drawn: dict[str, tuple[str, Any]]) -> tuple[str, set[str]]:
        template = self.rng.choice(pattern.requests)
        text = template
        for key, (spoken, _) in drawn.items():
            text = text.replace("{" + key + "}", spoken)
        if self.rng.random() < 0.15:
            text = text.lower() if not re.search("[A-Z]", "".join(t for t, _ in drawn.values())) else text
        return self.rng.choice(POLITE) + text, set(re.findall(r"{(\w+)}", template))

    def _filled(self, templates: tuple[str, ...], shown: dict[str, str]) -> str | None:
        fitting = [t for t in templates if set(re.findall(r"{(\w+)}", t)) <= set(shown)]
        return self.rng.choice(fitting).format_map(shown) if fitting else None

    def _offer(self, pattern: ToolPattern, names: dict[str, str]) -> PromptTool:
        rng = self.rng
        plain = rng.random() < 0.5
        fields = [_parameter(names[keys[0]], kind) for keys, kind in pattern.parameters]
        description = pattern.description if rng.random() < 0.8 else ""
        return PromptTool(pattern.names[0] if plain else rng.choice(pattern.names), description, tuple(fields))

    # --- tools made of document domains: create_invoice(...), register_contact(...) ---

    def form_call(self) -> Exchange:
        rng = self.rng
        forms = self.forms
        domain = rng.choice(forms.domains)
        verb = rng.choice(list(VERBS))
        concepts = rng.sample(forms.catalogue.domains[domain], rng.randint(2, 5))
        facts = [forms.fact(concept) for concept in concepts]
        stated = facts[: rng.randint(1, len(facts))]
        title = rng.choice(forms.catalogue.titles[domain])
        about, *openings = VERBS[verb]
        order = rng.sample(stated, len(stated))
        request = rng.choice(openings).format(title) + " ".join(map(forms.sentence, order))
        tool = PromptTool(
            f"{verb}_{title.lower().replace(' ', '_')}",
            about.format(title) if rng.random() < 0.7 else "",
            tuple(_form_parameter(concept) for concept in concepts),
        )
        arguments = {f.name: fact.value for f, fact in zip(tool.parameters, facts, strict=True) if fact in stated}
        result = {"status": "ok", "id": self.values.draw("code")[0]}
        answer = rng.choice(["Done, the id is {id}.", "It has the id {id}.", "OK, {id}."]).format_map(result)
        return Exchange(domain, tool, conversation(request, tool, arguments, result, answer))


def _parameter(name: str, kind: str) -> PromptField:
    base, _, argument = kind.partition(":")
    match base:
        case "int":
            return PromptField(name, "integer")
        case "float" | "money":
            return PromptField(name, "number")
        case "enum":
            return PromptField(name, "enum", choices=tuple(argument.split("/")))
        case "list":
            return PromptField(name, "list")
        case _:
            return PromptField(name)


def _form_parameter(concept: Concept) -> PromptField:
    """Parameters take the JSON kinds of the concept."""
    field = _parameter(concept.key, concept.kind)
    kinds = {"bool": "boolean", "date": "date", "percent": "number", "year": "integer"}
    return replace(field, kind=kinds.get(concept.kind, field.kind), description=concept.description)
