"""What each kind of node does to the state that it is appended to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sgl.runtime.text.chat_templates.quoted_text import QuotedText, quoted

from ..backend import GenRequest, Media, SelectRequest
from ..errors import ProgramError, node_failure
from ..nodes.description_nodes import SglFields, SglLabels
from ..nodes.ir import (
    SglAdapterBegin,
    SglAdapterEnd,
    SglCommitLazy,
    SglConstantText,
    SglExpr,
    SglGen,
    SglImage,
    SglRoleBegin,
    SglRoleEnd,
    SglSelect,
    SglSeparateReasoning,
    SglVarScopeBegin,
    SglVarScopeEnd,
    SglVideo,
    flatten,
)
from ..nodes.special_token_text import in_turn
from ..places.source_location import SourceLocation
from ..sampling.options import SamplingOptions, derive_seed
from ..sampling.text_limits import with_limit
from .state_transcript import LiteralText, PendingText, Split, TextSpan, ThoughtText, again, last_user_turn
from .state_writer import StateWriter
from .text_limit_check import check_limit

Rule = Callable[[StateWriter, Any, SourceLocation | None], None]
_registry: dict[Any, Any] = {}  # of the warnings module: which lines were warned about


def apply(executor: StateWriter, node: SglExpr, where: SourceLocation | None) -> None:
    """Do what the node says. Raises ProgramError with its place, for what can be known at once."""
    rule = RULES.get(type(node))
    if rule is None:
        raise ProgramError(f"{node!r} belongs to a trace and cannot be run", where)
    try:
        rule(executor, node, where)
    except ProgramError as error:
        if error.where is None:
            raise again(error, where) from error.__cause__
        raise
    except Exception as error:
        raise node_failure(node, error, where) from error


def literal(executor: StateWriter, node: SglConstantText, where: SourceLocation | None) -> None:
    text = in_turn(node.value, executor.conversation.role)
    executor.write(text, partial(executor.stream.append, text), where)


def fields(executor: StateWriter, node: SglFields, where: SourceLocation | None) -> None:
    """The fields of a type, or labels, are a literal that the backend's model decides."""
    literal(executor, SglConstantText(node.text(executor.backend)), where)


def gen(executor: StateWriter, node: SglGen[Any], where: SourceLocation | None, split: Split | None = None) -> None:
    warn_about_node(executor, node, where)
    options = node.sampling_params
    piece = executor.bind(node.name, PendingText(node, where, options.over(executor.options).n or 1, split))
    if node.reading is not None:  # it has to see what the gen itself says, not what the run says
        options = executor.attempt(piece, partial(_constrained, executor, node, options))
    options = with_limit(options.over(executor.options), typed=node.reading is not None)
    check = partial(check_limit, node, options, executor.backend, where)
    on_chunk = piece.chunk if executor.streaming and split is None else None
    keep = None if split is None else lambda text: split(text)[1]
    others = executor.forked_streams(options.n - 1) if options.n and options.n > 1 else []
    for index, stream in enumerate([executor.stream, *others]):
        sample = options.for_sample(index)
        request = GenRequest(sample, executor.chat_template.stops, node.name, where, keep)
        call = partial(stream.generate, request, on_chunk if index == 0 else None)
        executor.start(piece, index, call, options.timeout, stream if index else None, check)


def _constrained(executor: StateWriter, node: SglGen[Any], options: SamplingOptions) -> SamplingOptions:
    """The options with the grammar of the type; copied values come from the last user turn, if nothing else is said."""
    assert node.reading is not None
    if node.reading.copies and options.copied_from is None:
        options = replace(options, copied_from=last_user_turn(executor.conversation, executor.pieces.items))
    return node.reading.constrain(options, executor.backend)


def select(executor: StateWriter, node: SglSelect, where: SourceLocation | None) -> None:
    warn_about_node(executor, node, where)
    end = _end_of_turn(executor, node) if node.choices_method.scores_end(node.choices) else ""
    piece = executor.bind(node.name, PendingText(node, where))
    seed = executor.options.seed
    if seed is not None and node.temperature > 0:
        operations = sum(isinstance(before, PendingText) for before in executor.branch.own)
        seed = derive_seed(seed, -2, operations)
    choices: list[str] = [choice if isinstance(choice, QuotedText) else quoted(choice) for choice in node.choices]
    request = SelectRequest(choices, node.choices_method, node.temperature, node.name, where, seed, end)
    executor.start(piece, 0, partial(executor.stream.select, request))


def _end_of_turn(executor: StateWriter, node: SglSelect) -> str:
    """What the model writes when its turn ends here. Raises ProgramError where that is not known."""
    conversation, role = executor.conversation, executor.conversation.role
    suffix = conversation.suffix(role) if role else ""
    stops = (stop for stop in executor.chat_template.stops if suffix.lstrip().startswith(stop))
    end = next(stops, suffix)
    if not end:
        raise ProgramError(
            f"select({node.name!r}): one of the choices is the beginning of another, so {node.choices_method!r} scores "
            "the end of the turn too, and none is known here; put the select into sgl.assistant(...), or change the "
            "choices"
        )
    return end


def role_begin(executor: StateWriter, node: SglRoleBegin, where: SourceLocation | None) -> None:
    conversation = executor.conversation
    if conversation.wants_default_system(node.role) and conversation.role is None:
        role_begin(executor, SglRoleBegin("system"), where)
        literal(executor, SglConstantText(QuotedText(conversation.template.default_system_prompt or "")), where)
        role_end(executor, SglRoleEnd("system"), where)
    prefix = conversation.prefix(node.role)
    executor.write(prefix, partial(executor.stream.begin_turn, node.role, prefix), where)
    conversation.begin(node.role, len(executor.pieces))


def role_end(executor: StateWriter, node: SglRoleEnd, where: SourceLocation | None) -> None:
    suffix = executor.conversation.suffix(node.role)
    end = len(executor.pieces)
    executor.write(suffix, partial(executor.stream.end_turn, node.role, suffix), where)
    executor.conversation.end(end)


def image(executor: StateWriter, node: SglImage, where: SourceLocation | None) -> None:
    executor.attach(Media("image", node.path), where)


def video(executor: StateWriter, node: SglVideo, where: SourceLocation | None) -> None:
    executor.attach(Media("video", node.path, node.num_frames), where)


def separate_reasoning(executor: StateWriter, node: SglSeparateReasoning, where: SourceLocation | None) -> None:
    from ..chat.reasoning_split import marks_of, split_reasoning  # the formats of all families: few programs need them

    marks_of(node.model_type)
    split = partial(split_reasoning, model_type=node.model_type)
    for part in flatten(node.expr, executor):
        if isinstance(part, SglGen):
            gen(executor, part, where, split)
        else:
            apply(executor, part, where)
        piece = executor.pieces.items[-1]
        if isinstance(part, SglGen | SglSelect) and isinstance(piece, PendingText):
            executor.name(node.process_name_for_reasoning(part.name or ""), ThoughtText(piece))


def scope_begin(executor: StateWriter, node: SglVarScopeBegin, where: SourceLocation | None) -> None:
    executor.scopes.setdefault(node.name, []).append(len(executor.pieces))


def scope_end(executor: StateWriter, node: SglVarScopeEnd, where: SourceLocation | None) -> None:
    start = executor.scopes[node.name].pop()
    executor.name(node.name, TextSpan(executor.pieces.items[start:]))


def adapter_begin(executor: StateWriter, node: SglAdapterBegin, where: SourceLocation | None) -> None:
    before = executor.adapter
    executor.adapt(node.name)  # of a name that is not loaded it raises, and nothing has begun
    executor.adapters.append(before)


def adapter_end(executor: StateWriter, node: SglAdapterEnd, where: SourceLocation | None) -> None:
    executor.adapt(executor.adapters.pop())


def commit(executor: StateWriter, node: SglCommitLazy, where: SourceLocation | None) -> None:
    executor.stream.prefill()


RULES: dict[type[SglExpr], Rule] = {  # `lang/tools/__init__.py` adds those of its nodes
    SglConstantText: literal,
    SglFields: fields,
    SglLabels: fields,
    SglGen: gen,
    SglSelect: select,
    SglRoleBegin: role_begin,
    SglRoleEnd: role_end,
    SglImage: image,
    SglVideo: video,
    SglSeparateReasoning: separate_reasoning,
    SglAdapterBegin: adapter_begin,
    SglAdapterEnd: adapter_end,
    SglVarScopeBegin: scope_begin,
    SglVarScopeEnd: scope_end,
    SglCommitLazy: commit,
}


def register(rules: Mapping[type[SglExpr], Rule]) -> None:
    """Add the rules of nodes that a higher room defines."""
    RULES.update(rules)


class OutsideTurnWarning(UserWarning):
    """In a conversation, a gen or select is outside of all turns, where chat models do not expect to write."""


class UnreadDefinitionsWarning(UserWarning):
    """A select has definitions of its choices, but the prompt has none of them."""


def warn_about_node(executor: StateWriter, node: SglExpr, where: SourceLocation | None) -> None:
    """Called before a gen or select begins."""
    if _outside_of_turns(executor):
        role = executor.conversation.finished[-1].role
        _warn(
            executor,
            OutsideTurnWarning,
            where,
            f"{node!r:.100} is outside of all turns, after the end of the {role!r} turn, where a chat model does not "
            "expect to write; put it into a turn: s += sgl.assistant(...)",
        )
    if isinstance(node, SglSelect) and node.about and not _is_described(executor, node):
        _warn(
            executor,
            UnreadDefinitionsWarning,
            where,
            f"select({node.name!r}) has definitions that the prompt does not have, so the model does not know them; "
            "write them with sgl.labels(choices), as in s += sgl.system(sgl.labels(choices))",
        )


def _outside_of_turns(executor: StateWriter) -> bool:
    """Whether turns were used and none is open, by their roles or by the template's own marks."""
    conversation = executor.conversation
    if conversation.role is not None or not conversation.finished:
        return False
    ended = conversation.finished[-1].end or 0
    since = "".join(piece.text for piece in executor.pieces.items[ended + 1 :] if isinstance(piece, LiteralText))
    opens = conversation.opening("assistant").strip()
    return bool(opens) and opens not in since


def _is_described(executor: StateWriter, node: SglSelect) -> bool:
    """Whether the prompt has any of the definitions, by `sgl.labels` or in the program's own words."""
    texts = [" ".join(piece.text.split()) for piece in executor.pieces.items if isinstance(piece, LiteralText)]
    return any(about in text for about in node.about.values() for text in texts)


def _warn(executor: StateWriter, kind: type[Warning], where: SourceLocation | None, message: str) -> None:
    """Once for a line in a run, and, as Python's filters say, once for a line in a process."""
    if where is None or not executor.control.is_new((kind, where)):
        return
    warnings.warn_explicit(message, kind, where.file, where.line, registry=_registry)
