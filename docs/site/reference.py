"""The reference of the language, from signatures and docstrings: a line `::: sgl.gen` in a page becomes its entry."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
WIDTH = 92
GIVEN = {  # what programs are given and do not make: their entries have no constructor
    "sgl.ProgramState",
    "sgl.AsyncProgramState",
    "sgl.ProgramStateGroup",
    "sgl.SglFunction",
    "sgl.Journal",
    "sgl.Choice",
    "sgl.Calibration",
    "sgl.Classification",
    "sgl.Decision",
    "sgl.Extraction",
    "sgl.ProgramError",
    "sgl.ProgramCancelled",
    "sgl.DeadlineExceeded",
    "sgl.BudgetExceeded",
    "sgl.runtime.Sequence",
    "sgl.runtime.Tokenizer",
    "sgl.grammars.Matcher",
    "sgl.grammars.InvalidGrammarError",
    "sgl.grammars.UnsupportedGrammarError",
}
INSIDE = {  # methods that the house calls, not its readers
    "sgl.SglFunction": {"call", "of", "check_all"},
    "sgl.Journal": {"add", "add_turn", "acquire", "release", "create"},
    "sgl.ChoicesMethod": {"requires_unconditional_logprobs", "scores_end"},
    "sgl.Calibration": {"apply", "check"},
    "sgl.runtime.build.engine_config.EngineConfig": {"on", "for_model", "validate"},
    "sgl.runtime.SamplingParams": {"greedy", "penalized", "end_ids"},
    "sgl.runtime.Tokenizer": {"backend_decode", "decode_stream", "visible_bytes"},
    "sgl.grammars.Grammar": {"automaton"},
    "sgl.grammars.Matcher": {"state", "known_mask"},
}
SECTION = re.compile(r"(Args|Attributes|Raises|Returns):\n")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return ENTRY.sub(lambda match: entry(match[1]), markdown)


def entry(path: str) -> str:
    """The Markdown of a public name, such as `sgl.gen` or `sgl.runtime.SamplingParams`."""
    named = _find(path)
    module, _, name = path.rpartition(".")
    if inspect.isclass(named) and named.__name__ != name:
        meant = f"{module}.{named.__name__}"
        return f"### `{path}` {{ #{path} }}\n\nAnother name of [`{meant}`](#{meant}), for annotations.\n\n"
    signature = [] if path in GIVEN else _signature(named, path)
    lines = [f"### `{path}` {{ #{path} }}", "", *signature, *_words(named)]
    for name, member in _members(named) if inspect.isclass(named) else ():
        if name not in _inside(path, named):
            heading = f"#### `{path.rpartition('.')[2]}.{name}` {{ #{path}.{name} }}"
            lines += [heading, "", *_signature(member, name), *_words(member)]
    return "\n".join(lines)


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"docs: no {path!r} to make an entry of: {error}") from error


def _inside(path: str, kind: type) -> set[str]:
    """Methods that an entry leaves out; of a backend those by which the interpreter drives it."""
    from sgl.lang.backend import Backend
    from sgl.lang.backends.remote.base import RemoteBackend

    driven = {*vars(Backend), *vars(RemoteBackend), "send"} - {"flush_cache", "shutdown"}
    return INSIDE.get(path, set()) | (driven if issubclass(kind, Backend) else set())


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with their own docstring, in the order of the file."""
    seen: set[str] = set()
    for parent in kind.__mro__[:-1]:
        if not parent.__module__.startswith("sgl"):
            continue
        for name, member in vars(parent).items():
            if not name.startswith("_") and name not in seen and inspect.getdoc(member) and _is_documented(member):
                seen.add(name)
                yield name, member


def _is_documented(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)


def _words(named: Any) -> list[str]:
    return [*map(_paragraph, re.split(r"\n\s*\n", inspect.getdoc(named) or "")), ""]


def _signature(named: Any, name: str) -> list[str]:
    if isinstance(named, property) or not (callable(named) or isinstance(named, classmethod | staticmethod)):
        return []
    function = named.__func__ if isinstance(named, classmethod | staticmethod) else named
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return []
    without_self = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    shown = name.rpartition(".")[2] + _wrapped(found.replace(parameters=without_self))
    if inspect.isclass(named):
        shown = shown.removesuffix(" -> None")
    return ["```python", _manner(function, shown), "```", ""]


def _manner(function: Any, shown: str) -> str:
    """With `async` where a call is awaited, and what `with` takes where it is a context manager."""
    if "contextlib" in getattr(getattr(function, "__code__", None), "co_filename", ""):
        return re.sub(r"-> (Async)?(?:Iterator|Generator)\[", r"-> \1ContextManager[", shown)
    return f"async {shown}" if inspect.iscoroutinefunction(function) else shown


def _wrapped(signature: inspect.Signature) -> str:
    """The signature in one line, or a parameter a line where it is long."""
    text = _plain(str(signature))
    if len(text) <= WIDTH:
        return text
    bare = inspect.Signature(list(signature.parameters.values()))
    parameters = "".join(f"    {_plain(part)},\n" for part in _parts(bare))
    returns = text[text.rfind(")") + 1 :] if signature.return_annotation is not inspect.Signature.empty else ""
    return f"(\n{parameters}){returns}"


def _parts(signature: inspect.Signature) -> Iterator[str]:
    """Each parameter as written, with the marks `*` and `/` in their places."""
    kinds = inspect.Parameter
    starred = False
    last = None
    for parameter in signature.parameters.values():
        if last is kinds.POSITIONAL_ONLY and parameter.kind is not last:
            yield "/"
        if parameter.kind is kinds.VAR_POSITIONAL:
            starred = True
        if parameter.kind is kinds.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield str(parameter)
        last = parameter.kind


def _plain(text: str) -> str:
    """Annotations as they are read in the file: no quotes, no module paths."""
    text = re.sub(r"<(?:function|class) '?([\w.]+)'?(?: at 0x[0-9a-f]+)?>", r"\1", text).replace("<factory>", "...")
    text = re.sub(r"\b(?:sgl|typing|collections|concurrent)(?:\.\w+)*\.(\w+)", r"\1", text)
    return re.sub(r": '([^']*)'", r": \1", re.sub(r"-> '([^']*)'", r"-> \1", text))


def _paragraph(text: str) -> str:
    """A paragraph of a docstring: an indented one is an example, sections and columns become lists."""
    if all(line.startswith("    ") for line in text.splitlines()):
        return f"```python\n{textwrap.dedent(text)}\n```\n"
    if section := SECTION.match(text):
        body = textwrap.dedent(text[section.end() :])
        return f"{section[1]}:\n\n{body if section[1] == 'Returns' else _list(body)}\n"
    if re.search(r"^\w+ {2,}\S", text, re.MULTILINE):
        return _list(text) + "\n"
    return re.sub(r"\n(?=\w+: )", "  \n", text) + "\n"


def _list(text: str) -> str:
    """Lines of a name and what it is, with `:` or blanks between, continued by indented lines."""
    items = re.sub(r"\n +", " ", text)
    return re.sub(r"^\*{0,2}(\w+)(?::| ) *", r"- `\1`: ", items, flags=re.MULTILINE)
