"""How the form that a gen asks for (a type, a schema, a pattern) is said to a server of OpenAI's protocol."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ...errors import UnsupportedByBackendError
from ...sampling.options import SamplingOptions

Schema = dict[str, Any]


class ConstraintTokenizer(Protocol):
    """What is needed of a tokenizer: the ids of a text, without marks, and the text of ids."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


@dataclass(frozen=True)
class ServerCapabilities:
    """What a server can do. `constrained`: whose names it takes for grammars and more sampling options."""

    name: str
    chat: bool = True
    reasoning: bool = False
    constrained: frozenset[str] = frozenset()  # of "sglang", "vllm"
    prefill: bool = False
    sparse: bool = False  # sampling options are sent only if the program gives them
    tokenizer: Callable[[], ConstraintTokenizer | None] = lambda: None

    def refuse(self, what: str, advice: str) -> UnsupportedByBackendError:
        return UnsupportedByBackendError(f"{self.name} {what}; {advice}")


@dataclass(frozen=True)
class OpenAIConstraint:
    """What goes into a request for the sake of the form, and how the answer becomes the text.

    `opening` is text at the end of the prompt and is part of the result. `unwrap(answer)` gives the text
    that an answer stands for, `check` looks at an answer that is the text; both raise ValueError if it has not the
    form.
    `ended` says of an answer that reached a limit whether it is whole; without it the gen's own grammar does.
    `closed`: the answer ends by itself, and stops would cut the form.
    """

    body: dict[str, Any] = field(default_factory=dict)
    opening: str = ""
    stops: tuple[str, ...] = ()
    unwrap: Callable[[str], str] | None = None
    check: Callable[[str], object] | None = None
    ended: Callable[[str], bool] | None = None
    closed: bool = False


def constraint_for(options: SamplingOptions, traits: ServerCapabilities) -> OpenAIConstraint:
    """The form of a gen. Raises UnsupportedByBackendError for one that the server cannot keep to."""
    if options.structural_tag is not None:
        return _structural(options.structural_tag, traits)
    if options.ebnf is not None:
        return _grammar(options.ebnf, traits)
    if options.json_schema is not None:
        _refuse_copies(options.json_schema, traits)
        return _schema(options.json_schema, traits)
    if options.pattern is not None and traits.constrained:
        return _pattern(options.pattern, traits)
    if options.dtype is not None:
        return _chat_dtype(options.dtype) if traits.chat else _text_dtype(options.dtype, traits)
    if options.regex is not None:
        raise traits.refuse(
            f"keeps to no regex ({options.regex!r})",
            "give json_schema=, a dtype or select instead; a server that has vLLM's or SGLang's options is "
            "declared with OpenAI(..., constrained='vllm') or 'sglang'",
        )
    return OpenAIConstraint()


# --- grammars, on servers that have them -----------------------------------------------------------------


def _pattern(pattern: str, traits: ServerCapabilities) -> OpenAIConstraint:
    body: dict[str, Any] = {}
    if "sglang" in traits.constrained:
        body["regex"] = pattern
    if "vllm" in traits.constrained:
        body["structured_outputs"] = {"regex": pattern}
    return OpenAIConstraint(body, check=partial(_check_pattern, pattern))


def _check_pattern(pattern: str, answer: str) -> None:
    if not re.fullmatch(pattern, answer):
        raise ValueError(f"the answer {answer!r} does not match {pattern!r}: the server did not enforce it")


def _grammar(ebnf: str, traits: ServerCapabilities) -> OpenAIConstraint:
    if not traits.constrained:
        raise traits.refuse("keeps to no grammar", "give json_schema=, or a backend that takes ebnf=")
    body: dict[str, Any] = {"ebnf": ebnf} if "sglang" in traits.constrained else {}
    if "vllm" in traits.constrained:
        body["structured_outputs"] = {"grammar": ebnf}
    return OpenAIConstraint(body)


def _structural(tag: str, traits: ServerCapabilities) -> OpenAIConstraint:
    if not (traits.constrained and traits.chat):
        raise traits.refuse("takes no structural_tag", "give json_schema=, or a backend that takes it")
    return OpenAIConstraint({"response_format": {"type": "structural_tag", **json.loads(tag)}})


# --- JSON ------------------------------------------------------------------------------------------------


def _refuse_copies(text: str, traits: ServerCapabilities) -> None:
    """No API has masks of pieces of a text; a server that knows not the keyword ignores it."""
    if '"x-copied' in text:
        raise traits.refuse(
            "has no masks for values that are copied from a text",
            "use an sgl.Engine, an sgl.RuntimeEndpoint of `sgl serve`, or plain str fields that the program checks",
        )


def _schema(text: str, traits: ServerCapabilities) -> OpenAIConstraint:
    schema = json.loads(text)
    if traits.constrained:
        return OpenAIConstraint(_declared_schema(schema, traits), check=_parsed, ended=_is_whole_json)
    if not traits.chat:
        raise traits.refuse("is a completion model and keeps to no json_schema", "use a chat model")
    if isinstance(schema, dict) and schema.get("type") == "object":
        return OpenAIConstraint(_response_format(strict(schema)), check=_parsed, ended=_is_whole_json)
    return OpenAIConstraint(
        _response_format(wrapped(schema)), unwrap=_unwrapped_json, ended=_is_whole_json, closed=True
    )


def _declared_schema(schema: Any, traits: ServerCapabilities) -> dict[str, Any]:
    if traits.chat:
        return _response_format(schema)
    body: dict[str, Any] = {"json_schema": json.dumps(schema)} if "sglang" in traits.constrained else {}
    if "vllm" in traits.constrained:
        body["structured_outputs"] = {"json": schema}
    return body


def _response_format(schema: Any) -> dict[str, Any]:
    form = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def wrapped(schema: Schema) -> Schema:
    """An object whose only field is the value: at the root, strict schemas allow objects only."""
    inner = dict(schema)
    definitions = {name: inner.pop(name) for name in ("$defs", "definitions") if name in inner}
    return strict({"type": "object", "properties": {"value": inner}, **definitions})


def strict(schema: Any) -> Any:
    """The schema as strict mode wants it: every field required, no others. What fulfils it, fulfils `schema`."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {
        name: value if name in ("enum", "const", "default") else _inside(name, value) for name, value in schema.items()
    }
    if "properties" in schema:
        tight |= {"required": list(schema["properties"]), "additionalProperties": False}
    return tight


def _inside(name: str, value: Any) -> Any:
    if name in ("properties", "$defs", "definitions") and isinstance(value, dict):
        return {key: strict(part) for key, part in value.items()}
    return strict(value) if name in ("items", "anyOf", "prefixItems") else value


def _is_whole_json(answer: str) -> bool:
    """Whether it is JSON and nothing but white space could follow: of a number, more digits could."""
    try:
        value = json.loads(answer)
    except ValueError:
        return False
    return isinstance(value, bool) or not isinstance(value, int | float)


def _unwrapped_json(answer: str) -> str:
    return json.dumps(_value(answer), ensure_ascii=False)


def _value(answer: str) -> Any:
    found = _parsed(answer)
    if not isinstance(found, dict) or "value" not in found:
        raise ValueError(f"the answer {answer!r} does not fulfil the schema: the server did not enforce it")
    return found["value"]


def _parsed(answer: str) -> Any:
    try:
        return json.loads(answer)
    except ValueError as error:
        raise ValueError(f"the answer {answer!r} is not JSON ({error}): the server did not enforce it") from error


# --- types -----------------------------------------------------------------------------------------------

_JSON_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("integer", (int,)),
    "float": ("number", (int, float)),
    "bool": ("boolean", (bool,)),
    "str": ("string", (str,)),
}


def _chat_dtype(dtype: str) -> OpenAIConstraint:
    name, kinds = _JSON_TYPES[dtype]

    def unwrap(answer: str) -> str:
        value = _value(answer)
        if not isinstance(value, kinds) or (dtype != "bool" and isinstance(value, bool)):
            raise ValueError(f"the answer {answer!r} has no {dtype}: the server did not enforce the schema")
        return f'"{value}"' if dtype == "str" else str(value)

    return OpenAIConstraint(_response_format(wrapped({"type": name})), unwrap=unwrap, ended=_is_whole_json, closed=True)


def _text_dtype(dtype: str, traits: ServerCapabilities) -> OpenAIConstraint:
    if dtype == "str":
        return OpenAIConstraint(opening='"', stops=('"',), unwrap=lambda answer: f'"{answer}"')
    if dtype == "int":
        return OpenAIConstraint(_digits_only(traits), unwrap=_whole_number)
    raise traits.refuse(f"is a completion model without dtype {dtype}", "use int or str, or a chat model")


def _whole_number(answer: str) -> str:
    if not re.fullmatch(r"[-+]?[0-9]+", answer.strip()):
        raise ValueError(f"the answer {answer!r} is not a whole number; end the prompt so that a number must follow")
    return answer.strip()


def _digits_only(traits: ServerCapabilities) -> dict[str, Any]:
    """A bias towards numbers and what ends them, where the tokens of the model are known."""
    tokenizer = traits.tokenizer()
    if tokenizer is None:
        return {}
    texts = ["-", " ", "\n", *map(str, range(10)), *map(str, range(10, 100))]
    ids = {tokens[0] for text in texts if len(tokens := tokenizer.encode(text)) == 1}
    return {"logit_bias": {str(token): 100 for token in sorted(ids)}}
