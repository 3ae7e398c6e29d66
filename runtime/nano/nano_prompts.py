"""The prompt formats that sgl-nano knows: one place, plain strings, no dependencies.

Training data, evaluation and the examples build their turns here, so that a program speaks to the
model in the words it was trained on.  A conversation is a list of messages
`{"role": "system" | "user" | "assistant" | "tool", "content": str}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

Message = dict[str, str]

START = "<|endoftext|>"
END = "<|end|>"
ROLES = ("system", "user", "assistant", "tool")

NONE_INTENT = "NONE"
ANY_VALUE = "dontcare"
ANSWER = "answer"
DIALOGUE_LIMIT = 3600
MOST_DEPTH = 4

EXTRACT_TASK = "Extract these fields from the text as JSON. Leave out what the text does not say."
INTENT_TASK = "Choose the intent of the user's request."
STATE_TASK = (
    "Track the user's request in the dialogue. For a service, give the active intent, then the slot values "
    f'so far as JSON. Use "{ANY_VALUE}" where any value is fine.'
)
TOOLS_TASK = f"Use a tool, then give its arguments as JSON, or {ANSWER}."
LABEL_TASK = "Choose the label that fits the text."
QUESTION_TASK = "Answer the question from the text."
CHAT_TASK = "You are a helpful assistant."


@dataclass(frozen=True)
class PromptField:
    """One value to fill: `kind` is string, integer, number, boolean, date, enum, list or object."""

    name: str
    kind: str = "string"
    description: str = ""
    choices: tuple[str, ...] = ()
    fields: tuple[PromptField, ...] = ()


@dataclass(frozen=True)
class PromptTool:
    """A function that the assistant may call."""

    name: str
    description: str = ""
    parameters: tuple[PromptField, ...] = ()


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def render(messages: Iterable[Message]) -> str:
    """The text of a whole conversation as the chat template writes it, without the start token."""
    return "".join(f"<|{m['role']}|>{m['content']}{END}" for m in messages)


def json_text(value: Any) -> str:
    """JSON as the model writes it: `json.dumps` with `", "` and `": "`, characters kept as they are."""
    return json.dumps(value, ensure_ascii=False)


def field_lines(fields: Iterable[PromptField], indent: str = "") -> list[str]:
    """One line a field: `- name (kind): description`; nested fields are indented by two blanks."""
    lines = []
    for field in fields:
        kind = _kind_note(field)
        description = f": {field.description}" if field.description else ""
        lines.append(f"{indent}- {field.name}{kind}{description}")
        lines += field_lines(field.fields, indent + "  ")
    return lines


def _kind_note(field: PromptField) -> str:
    if field.choices:
        return f" ({' | '.join(field.choices)})"
    return "" if field.kind == "string" else f" ({field.kind})"


def schema_of(fields: Iterable[PromptField], required: bool = False) -> dict[str, Any]:
    """The JSON Schema of an object with these fields, in this order; all optional by default."""
    fields = tuple(fields)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {field.name: _value_schema(field, required) for field in fields},
        "additionalProperties": False,
    }
    if required:
        schema["required"] = [field.name for field in fields]
    return schema


def _value_schema(field: PromptField, required: bool) -> dict[str, Any]:
    if field.choices:
        return {"enum": list(field.choices)}
    match field.kind:
        case "object":
            return schema_of(field.fields, required)
        case "list":
            return {"type": "array", "items": {"type": "string"}}
        case "date":
            return {"type": "string", "format": "date"}
        case kind:
            return {"type": kind}


def fields_of(schema: dict[str, Any]) -> tuple[PromptField, ...]:
    """Describe an object schema (enum, scalar, date, object and array properties) as fields.

    Schemas as pydantic makes them will do: of several types the first that is not null counts, a `$ref` is followed.
    Objects deeper than MOST_DEPTH are described without what is inside, so that recursive schemas end.
    """
    return _fields_inside(schema, schema.get("$defs", {}), MOST_DEPTH)


def _fields_inside(schema: dict[str, Any], defs: dict[str, Any], depth: int) -> tuple[PromptField, ...]:
    properties = schema.get("properties", {}) if depth else {}
    return tuple(_field_of(name, _one_type(value, defs), defs, depth - 1) for name, value in properties.items())


def _one_type(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """The schema without references and with only the first type that is not null."""
    for _ in range(len(defs) + 1):  # no chain of references is longer than there are definitions
        if "$ref" in schema:
            schema = {**defs.get(schema["$ref"].rpartition("/")[2], {}), **_without(schema, "$ref")}
        if members := [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]:
            schema = {**members[0], **_without(schema, "anyOf")}
    return schema


def _without(schema: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != key}


def _field_of(name: str, schema: dict[str, Any], defs: dict[str, Any], depth: int) -> PromptField:
    description = schema.get("description", "")
    choices = tuple(str(choice) for choice in schema.get("enum", ()))
    if choices:
        return PromptField(name, "enum", description, choices)
    if schema.get("format") == "date":
        return PromptField(name, "date", description)
    match schema.get("type", "string"):
        case "object":
            return PromptField(name, "object", description, fields=_fields_inside(schema, defs, depth))
        case "array":
            return PromptField(name, "list", description)
        case kind:
            return PromptField(name, str(kind), description)


# --- extraction from a document ---------------------------------------------------------------------


def extraction(fields: Sequence[PromptField], document: str, task: str = EXTRACT_TASK) -> list[Message]:
    """Asks for the fields of a document; the answer is one JSON object with the fields in this order."""
    return [message("system", "\n".join([task, *field_lines(fields)])), message("user", document)]


# --- intents and slots of one utterance --------------------------------------------------------------


def intent_choice(intents: Iterable[tuple[str, str]], utterance: str, task: str = INTENT_TASK) -> list[Message]:
    """Asks for one of the (name, description) intents; the answer is the bare name."""
    lines = [f"- {name}: {about}" if about else f"- {name}" for name, about in intents]
    return [message("system", "\n".join([task, *lines])), message("user", utterance)]


def label_choice(labels: Iterable[str], text: str, task: str = LABEL_TASK) -> list[Message]:
    """Asks for the label of a text, as sentiment, topic or yes and no; the answer is the bare label."""
    return intent_choice([(label, "") for label in labels], text, task)


# --- the state of a dialogue, one service at a time ---------------------------------------------------


def dialogue_prefix(turns: Iterable[tuple[str, str]], characters: int = DIALOGUE_LIMIT) -> list[Message]:
    """The shared part: the task and the dialogue as (speaker, utterance) pairs, "user" or "system".

    Of a dialogue longer than `characters` the oldest turns are left out.
    """
    lines = [f"{speaker.capitalize()}: {utterance}" for speaker, utterance in turns]
    while len(lines) > 1 and sum(map(len, lines)) > characters:
        del lines[0]
    return [message("system", STATE_TASK), message("user", "\n".join(lines))]


def service_question(service: dict[str, Any]) -> Message:
    """The part of one service, after the dialogue.  Answers: the intent, then the slots as JSON.

    `service` is an entry of the Schema-Guided Dialogue schema files.
    """
    head = f"Service: {service['service_name']}"
    if service.get("description"):
        head += f" - {service['description']}"
    intents = [_named_line(intent["name"], intent.get("description", "")) for intent in service["intents"]]
    slots = field_lines(_shown(field) for field in state_fields(service))
    return message("user", "\n".join([head, "Intents:", *intents, "Slots:", *slots]))


def _named_line(name: str, description: str) -> str:
    return f"- {name}: {description}" if description else f"- {name}"


def _shown(field: PromptField) -> PromptField:
    return replace(field, choices=tuple(choice for choice in field.choices if choice != ANY_VALUE))


def intent_names(service: dict[str, Any]) -> list[str]:
    """The choices for the active intent of a service."""
    return [intent["name"] for intent in service["intents"]] + [NONE_INTENT]


def state_fields(service: dict[str, Any]) -> tuple[PromptField, ...]:
    """The slots that a user can set (those that some intent takes), in the order of the schema."""
    settable = {
        name
        for intent in service["intents"]
        for name in (*intent.get("required_slots", ()), *intent.get("optional_slots", ()))
    }
    return tuple(_slot_field(slot) for slot in service["slots"] if slot["name"] in settable)


def _slot_field(slot: dict[str, Any]) -> PromptField:
    if slot.get("is_categorical"):
        choices = (*slot["possible_values"], ANY_VALUE)
        return PromptField(slot["name"], "enum", slot.get("description", ""), choices)
    return PromptField(slot["name"], "string", slot.get("description", ""))


# --- tools ---------------------------------------------------------------------------------------------


def tools_system(tools: Iterable[PromptTool], note: str = "") -> Message:
    """The system turn of an agent.

    Each step of the assistant is two turns: the name of a tool (or `answer`), then the arguments as
    JSON (or the sentence of the answer).  A tool's result comes back as a "tool" turn of JSON.
    """
    lines = [TOOLS_TASK]
    for tool in tools:
        lines.append(_named_line(tool.name, tool.description))
        lines += field_lines(tool.parameters, "  ")
    return message("system", "\n".join([*lines, note] if note else lines))


def tool_call(name: str, arguments: dict[str, Any]) -> list[Message]:
    return [message("assistant", name), message("assistant", json_text(arguments))]


def tool_result(result: Any) -> Message:
    return message("tool", json_text(result))


def tool_answer(text: str) -> list[Message]:
    return [message("assistant", ANSWER), message("assistant", text)]


# --- questions on a text -------------------------------------------------------------------------------


def question_on(text: str, question: str) -> list[Message]:
    """A question on a short text; the answer is a span of the text, or one word."""
    return [message("system", QUESTION_TASK), message("user", f"{text}\n\nQuestion: {question}")]
