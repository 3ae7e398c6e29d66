"""The primitives of the language: what a program appends to its state."""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, overload

from ..errors import BadValueError, UnknownOptionError, reject_unknown, shown
from ..sampling.choices import ChoicesSamplingMethod, token_length_normalized
from ..sampling.gen_options import GenOptions, Strings
from ..sampling.option_table import POSITIONAL, PROGRAM_OPTIONS, annotation
from ..sampling.options import CONSTRAINTS, DTYPE_REGEXES, NAMES, SamplingOptions, make_options
from ..typed import reading_of
from .append_error_hints import GEN_OPTIONS as _MEANT
from .append_error_hints import what_to_append
from .ir import (
    SglConstantText,
    SglExpr,
    SglExprList,
    SglGen,
    SglImage,
    SglRoleBegin,
    SglRoleEnd,
    SglSelect,
    SglSeparated,
    SglVideo,
    flatten,
)
from .special_token_text import labels_in
from .special_token_text import plain as plain
from .special_token_text import special as special

if TYPE_CHECKING:
    from typing_extensions import TypeForm
    from typing_extensions import TypeVar as WithDefault

    Value = WithDefault("Value", default=str)
Texts: TypeAlias = Iterable[str] | Mapping[str, str | None]  # choices: texts, or texts with definitions
ROLES = ("system", "user", "assistant", "tool")

_GEN_NAMES = frozenset(NAMES) | {"name", "max_tokens", "min_tokens", "choices", "choices_method", "type"}


@overload
def gen(
    name: str | None = None,
    type: type[Value] = str,  # type: ignore[assignment]
    max_tokens: int | None = None,
    **options: Unpack[GenOptions],
) -> SglGen[Value]: ...
@overload
def gen(
    name: str | None = None, type: TypeForm[Value] = ..., max_tokens: int | None = None, **options: Unpack[GenOptions]
) -> SglGen[Value]: ...
@overload
def gen(
    name: str | None, max_tokens: int | None, /, *positional: Any, **options: Unpack[GenOptions]
) -> SglGen[str]: ...
@overload
def gen(
    name: str | None = None, *, choices: type[Value], max_tokens: int | None = None, **options: Unpack[GenOptions]
) -> SglSelect[Value]: ...
@overload
def gen(
    name: str | None = None, *, choices: Texts, max_tokens: int | None = None, **options: Unpack[GenOptions]
) -> SglSelect[str]: ...
@overload
def gen(
    name: str | None = None, *, choices: TypeForm[Value], max_tokens: int | None = None, **options: Unpack[GenOptions]
) -> SglSelect[Value]: ...
def gen(*positional: Any, **options: Any) -> Any:
    """Let the model write. The text is appended to the state and bound to `name`.

    Give at most one constraint:

    type         int, float, bool, str, Literal, Enum, dataclass, TypedDict, pydantic model, list of these, ...; also
                 as the second argument: `gen("age", int)`. `s[name]` is the text, `s.get(name)` the value of that type
    choices      as `select` takes them: a list of texts, a dict of definitions, an Enum or a Literal; the gen becomes a
        `select`, which uses only `temperature` and `choices_method`
    regex        a regular expression
    json_schema  JSON text, a dict or a pydantic class; the value stays text
    ebnf         a grammar
    structural_tag  free text with constrained parts, as JSON

    Fields of `sgl.Quote` are pieces of a text: that of `copied_from`, else the last user turn (docs/copied.md).

    Declare a field that the input may not mention as `x: str | None = None`; otherwise the model has to invent it.
    `sgl.fields(type)` describes the fields to the model. `dtype` is an older name of `type` for int, float, bool and
    str; its value stays text.

    Options that are None are inherited from `run`. `max_tokens` and `min_tokens` can also be spelled `max_new_tokens`
    and `min_new_tokens`. A stop string is removed from the text unless `keep_stop` is True. With `n` > 1 the value is a
    list, and the state continues with its first item. Without `max_tokens`, free text ends after 128 tokens, and a text
    with a type or a constraint where its grammar ends, or the context. A typed text that a limit cuts is an error
    (TruncatedError), and with `error_on_truncation` so is one that has only a constraint; otherwise
    meta_info["truncated"] is True. `close_at_limit` ends either in the shortest valid way and warns. `timeout`: seconds
    from the moment the gen is appended. `speculation=False`: where the engine drafts tokens, it does not for this text,
    and learns nothing from it; other backends have none to leave out.

    Raises UnknownOptionError, BadValueError.
    """
    if len(positional) > 1 and not _is_number(positional[1]):
        positional = _without_type(positional, options)
    if positional:
        options = _with_positional(positional, options)
    name = options.pop("name", None)
    _checked_name(name)
    if not options.keys() <= _GEN_NAMES:
        _refuse_adapter(name, options)
        reject_unknown("gen", options, _GEN_NAMES, _MEANT)
    type, choices, method = (options.pop(each, None) for each in ("type", "choices", "choices_method"))
    if choices is not None:
        _refuse_with_choices(name, type, options)
        return select(name, choices, options.get("temperature") or 0.0, method or token_length_normalized)
    reading = None if type is None else _reading(name, type)
    if options.get("copied_from") is not None and not (reading and reading.copies):
        raise BadValueError(
            f"gen({name!r}) has copied_from, but no type with copied values; write Annotated[str, sgl.copied] or "
            "sgl.Quote in its type"
        )
    return SglGen(name, _options(name, type, options), reading)


def _options(name: str | None, type: Any, given: dict[str, Any]) -> SamplingOptions:
    """The options of a gen. Raises BadValueError for a value, and for more than one constraint."""
    if given.get("dtype") is not None and given.get("regex") is not None:
        both = f"dtype={given['dtype']!r} wins over regex={given['regex']!r}"
        warnings.warn(f"gen({name!r}): {both}", stacklevel=3)
    try:
        options = make_options(**given)
    except BadValueError as error:
        raise BadValueError(f"gen({name!r}): {error}") from None
    _one_constraint(name, options, type)
    return options


def _without_type(positional: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments without the second, which is the type and goes to `options`."""
    name, type, *others = positional
    if isinstance(type, str):
        raise BadValueError(f"gen({name!r}): {_text_as_type(type)}")
    if "type" in options:
        raise UnknownOptionError(f"gen({name!r}) got multiple values for argument 'type'; give one of them")
    options["type"] = type
    return (name, *others)


def _with_positional(positional: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """All arguments by their names."""
    if len(positional) > len(POSITIONAL):
        problem = f"gen takes up to {len(POSITIONAL)} positional arguments, but {len(positional)} were given"
        raise UnknownOptionError(f"{problem}; give options by name")
    given = dict(zip(POSITIONAL, positional, strict=False))
    for name in given.keys() & options.keys():
        raise UnknownOptionError(f"gen({positional[0]!r}) got multiple values for argument {name!r}; give one of them")
    return given | options


def _gen_signature() -> inspect.Signature:
    """What `help(sgl.gen)` shows, from the table of options."""
    own = {"name": "str | None", "max_tokens": "Any", "min_tokens": "int | None", "type": "Any"}
    own |= {"choices": "Any", "choices_method": "ChoicesSamplingMethod | None"}
    types = own | {name: annotation(option) for name, option in PROGRAM_OPTIONS.items()}
    by_name = [name for name in ("type", *types) if name not in POSITIONAL]
    parameters = [
        *((name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in POSITIONAL),
        *((name, inspect.Parameter.KEYWORD_ONLY) for name in dict.fromkeys(by_name)),
    ]
    found = [inspect.Parameter(name, kind, default=None, annotation=types[name]) for name, kind in parameters]
    return inspect.Signature(found, return_annotation="Any")


gen.__signature__ = _gen_signature()  # type: ignore[attr-defined]


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: Strings = None,
    stop_token_ids: list[int] | None = None,
    stop_regex: Strings = None,
    *args: Any,
    **options: Any,
) -> SglExpr:
    """`gen` of a whole number, for old programs. The third positional argument is `n`; the value stays a str."""
    return _typed_gen(int, (name, max_tokens, n, stop, stop_token_ids, stop_regex, *args), options)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: Strings = None,
    stop_token_ids: list[int] | None = None,
    stop_regex: Strings = None,
    *args: Any,
    **options: Any,
) -> SglExpr:
    """`gen` of a quoted string, for old programs. The third positional argument is `n`; the value keeps the quotes."""
    return _typed_gen(str, (name, max_tokens, n, stop, stop_token_ids, stop_regex, *args), options)


@overload
def select(
    name: str | None,
    choices: type[Value],
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> SglSelect[Value]: ...
@overload
def select(
    name: str | None,
    choices: Texts,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> SglSelect[str]: ...
@overload
def select(
    name: str | None,
    choices: TypeForm[Value],
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> SglSelect[Value]: ...
@overload
def select(
    name: str | None = None,
    *,
    choices: Any,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> SglSelect[Any]: ...
def select(
    name: str | None = None,
    choices: Any = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> SglSelect[Any]:
    """Append the most likely of the choices, as scored by `choices_method`.

    `choices`: a list of texts; a dict of texts with what each means; or an Enum class, a Literal or bool. `s[name]` is
    the text; `s.get(name)` the member or value of an Enum, Literal or bool. The model reads definitions only where the
    program writes them, with `sgl.labels(choices)`.

    With a `temperature` above 0 the choice is sampled from the choices' probabilities at that temperature; the
    run's seed makes this reproducible. `s.probs(name)` returns the probability of each choice.
    """
    _refuse_choices_as_name(name, choices)
    labels = labels_in(f"select({name!r})", choices)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature < math.inf:
        raise BadValueError(f"select({name!r}): temperature is {temperature!r}; give a number from 0")
    if not callable(choices_method) or isinstance(choices_method, type):
        raise BadValueError(
            f"select({name!r}): choices_method is {choices_method!r}; give a method, such as sgl.greedy_token_selection"
        )
    return SglSelect(name, labels.texts, temperature, choices_method, labels.reading, labels.about)


def image(expr: Any) -> SglImage:
    """An image: a path, a URL, bytes or a PIL image. Needs a backend that accepts images."""
    return SglImage(expr)


def video(path: Any, num_frames: int) -> SglVideo:
    """A video (path or URL), of which the model sees `num_frames` frames."""
    return SglVideo(path, num_frames)


def separate_reasoning(expr: SglExpr, model_type: str | None = None) -> SglExprList:
    """Separate the reasoning of the named gens in `expr` from their answers.

    Then `s[name]` is the answer and `s[name + "_reasoning_content"]` the reasoning, and the state's text continues
    after the answer alone. `model_type` selects the marks of the reasoning, such as "deepseek-r1" or "qwen3".
    """
    for part in flatten(expr):
        if isinstance(part, SglGen | SglSelect) and part.name is None:
            raise BadValueError(f"separate_reasoning: a name must be provided for {part!r}")
    return SglSeparated(model_type, expr)


def system(expr: SglExpr | str | EllipsisType = ...) -> SglExprList:
    """A whole system turn. Raises BadValueError for None."""
    return role_turn("system", expr)


def user(expr: SglExpr | str | EllipsisType = ...) -> SglExprList:
    """A whole user turn. Raises BadValueError for None."""
    return role_turn("user", expr)


def assistant(expr: SglExpr | str | EllipsisType = ...) -> SglExprList:
    """A whole assistant turn. Raises BadValueError for None."""
    return role_turn("assistant", expr)


def tool(expr: Any = ...) -> SglExprList:
    """A whole tool turn: text and expressions are appended unchanged, any other value as JSON. Raises BadValueError for
    None.
    """
    return role_turn("tool", expr)


def system_begin() -> SglRoleBegin:
    """The mark that opens a system turn; `system_end()` closes it."""
    return SglRoleBegin("system")


def system_end() -> SglRoleEnd:
    """The mark that closes the turn that `system_begin()` opened."""
    return SglRoleEnd("system")


def user_begin() -> SglRoleBegin:
    """The mark that opens a user turn; `user_end()` closes it."""
    return SglRoleBegin("user")


def user_end() -> SglRoleEnd:
    """The mark that closes the turn that `user_begin()` opened."""
    return SglRoleEnd("user")


def assistant_begin() -> SglRoleBegin:
    """The mark that opens an assistant turn; `assistant_end()` closes it."""
    return SglRoleBegin("assistant")


def assistant_end() -> SglRoleEnd:
    """The mark that closes the turn that `assistant_begin()` opened."""
    return SglRoleEnd("assistant")


def tool_begin() -> SglRoleBegin:
    """The mark that opens a tool turn; `tool_end()` closes it."""
    return SglRoleBegin("tool")


def tool_end() -> SglRoleEnd:
    """The mark that closes the turn that `tool_begin()` opened."""
    return SglRoleEnd("tool")


def role_turn(role: str, expr: Any) -> SglExprList:
    """RoleBegin, the expression if there is one (...: none), RoleEnd. Raises BadValueError for None."""
    if expr is None:
        raise BadValueError(
            f"{role}(None): a turn needs a text or an expression; "
            f"{_NO_CONTENT.get(role, 'leave the turn out where there is none')}"
        )
    inside: list[SglExpr] = [] if expr is ... else [as_node(_tool_text(expr) if role == "tool" else expr)]
    return SglExprList([SglRoleBegin(role), *inside, SglRoleEnd(role)])


def _tool_text(value: Any) -> Any:
    """What a tool answered, as a model reads it: text and nodes as they are, everything else as JSON."""
    if isinstance(value, SglExpr | str):
        return value
    from pydantic_core import to_jsonable_python

    return json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)


_NO_CONTENT = {"tool": 'for a tool that returned nothing write "null"'}


def as_node(value: Any) -> SglExpr:
    """A string or node as a node. Raises ValueError for None, BadValueError for anything else."""
    if isinstance(value, SglExpr):
        return value
    if isinstance(value, str):
        return SglConstantText(value)
    if value is None:
        raise BadValueError(
            "Tried to append None to state. Append a text or an expression; a function that returns nothing gives None"
        )
    raise BadValueError(
        f"{shown(value)} cannot be appended to a state; append strings and expressions ({what_to_append(value)})"
    )


def _text_as_type(text: str) -> str:
    """What to write for a text in the second place of a gen."""
    meant = f"for a regular expression write regex={text!r}"
    if text.strip().isdigit():
        meant = f"write {text.strip()} without quotes"
    elif text in DTYPE_REGEXES:
        meant = f"write {text} without quotes"
    elif text.isidentifier():
        meant = f"for a type write {text} without quotes, {meant}"
    return f"the second argument is a type or max_tokens (a whole number), not the text {text!r}; {meant}"


def _refuse_choices_as_name(name: Any, choices: Any) -> None:
    if name is not None and not isinstance(name, str):
        meant = f"select('answer', {shown(name)})" if choices is None else "select('answer', choices)"
        raise BadValueError(f"select: the first argument is the name of a variable, not {shown(name)}; write {meant}")


def _checked_name(name: Any) -> None:
    """A type or a list in the place of the name is another argument. Raises BadValueError."""
    if name is not None and not isinstance(name, str | int):
        said = name.__name__ if isinstance(name, type) else shown(name)
        raise BadValueError(
            f"gen: the first argument is the name of a variable, not {said}; write gen('answer', {said})"
        )


def _is_number(value: Any) -> bool:
    """Whether the second argument is `max_tokens`: a number, or what will be refused as one."""
    return value is None or isinstance(value, float) or hasattr(type(value), "__index__")


def _reading(name: str | None, type: Any) -> Any:
    if isinstance(type, list | tuple) and all(isinstance(one, str) for one in type):
        raise BadValueError(
            f"gen({name!r}): {shown(type)} is a list, not a type; to choose one of them write choices={shown(type)}, "
            "or Literal[...] for a type"
        )
    if isinstance(type, SglExpr):
        raise BadValueError(f"gen({name!r}): {type!r} is an expression, not a type; join expressions with +")
    try:
        return reading_of(type)
    except BadValueError as error:
        raise BadValueError(f"gen({name!r}): {error}") from None


def _refuse_adapter(name: str | None, options: dict[str, Any]) -> None:
    if "adapter" in options:
        asked = options["adapter"]
        raise UnknownOptionError(
            f"gen({name!r}): adapter={asked!r} belongs to a state, not to a gen, since all of the text is computed by "
            f"it; use program.run(..., adapter={asked!r}), run_batch with one per item, s.fork(1, "
            f"adapter={asked!r})[0], or with s.adapter({asked!r}):"
        )


def _refuse_with_choices(name: str | None, type: Any, options: dict[str, Any]) -> None:
    constraints = [each for each in CONSTRAINTS if options.get(each) is not None]
    if constraints := constraints + ([] if type is None else ["type"]):
        raise BadValueError(f"gen({name!r}) has both {' and '.join(['choices', *constraints])}; give one of them")


def _one_constraint(name: str | None, options: SamplingOptions, type: Any) -> None:
    """Raise BadValueError if the text would have to obey more than one grammar."""
    given = [c for c in CONSTRAINTS if getattr(options, c) is not None]
    given += [] if type is None else ["type"]
    if len(given) > 1 and given != ["dtype", "regex"]:
        raise BadValueError(f"gen({name!r}) has both {' and '.join(given)}; give one of them")


_TYPED_ORDER = tuple(name for name in POSITIONAL[: POSITIONAL.index("dtype")] if name != "min_tokens")


def _typed_gen(dtype: type, positional: tuple[Any, ...], options: dict[str, Any]) -> SglExpr:
    if len(positional) > len(_TYPED_ORDER):
        raise UnknownOptionError(f"gen_{dtype.__name__} takes {len(_TYPED_ORDER)} positional arguments")
    given = dict(zip(_TYPED_ORDER, positional, strict=False))
    _typed: Callable[..., SglExpr] = gen
    return _typed(**{**given, **options, "dtype": dtype})
