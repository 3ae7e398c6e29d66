"""What is written from the table of sampling options: `python docs/site/sampling.py` after a change of it.

The table is SamplingParams (runtime/sampling/sampling_params.py) and what only programs have
(lang/sampling/option_table.py). Written are the types for editors, the list in `run`'s docstring and the table in
docs/language.md. A test compares all three with what this would write.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path

from sgl.lang.sampling.option_table import OTHER_NAMES, PROGRAM_OPTIONS, annotation
from sgl.runtime.sampling.sampling_options import PROTOCOLS, SamplingOption

ROOT = Path(__file__).resolve().parents[2]
MADE = "<!-- made by docs/site/sampling.py: {} -->\n"
TYPES = '''"""The sampling options, for type checkers and editors. Made by docs/site/sampling.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from .choices import ChoicesSamplingMethod

Strings = str | list[str] | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The fields of SamplingOptions."""

{kept}


class SamplingNames(TypedDict, total=False):
    """What a gen and a run both take, besides `max_tokens`. See `sgl.gen`."""

{both}


class GenOptions(SamplingNames, total=False):
    """What `gen` takes besides its name, its type, `max_tokens` and `choices`. See `sgl.gen`."""

    min_tokens: int | None
    choices_method: ChoicesSamplingMethod | None
{gen}
'''


def types(_: str) -> str:
    """lang/sampling/gen_options.py."""
    options = PROGRAM_OPTIONS.items()
    both = {name: each for name, each in options if each.in_run or name == "timeout"}
    return TYPES.format(
        kept="\n".join(f"    {name}: {kept_annotation(each)} = None" for name, each in options),
        both="\n".join(f"    {name}: {annotation(each)}" for name, each in both.items()),
        gen="\n".join(f"    {name}: {annotation(each)}" for name, each in options if name not in both),
    )


_KEPT = {"texts": "tuple[str, ...]", "patterns": "tuple[str, ...]", "token ids": "tuple[int, ...]"}
_KEPT |= dict.fromkeys(("dtype", "schema", "tag"), "str")


def kept_annotation(option: SamplingOption) -> str:
    """What SamplingOptions keeps of an option."""
    return f"{_KEPT[option.kind]} | None" if option.kind in _KEPT else annotation(option)


def docstring(text: str) -> str:
    """lang/sgl_function.py with the options of `run` in its docstring."""
    return re.sub(
        r"(?s)        The sampling options are defaults .*?\n\n",
        lambda _: (
            textwrap.fill(
                f"The sampling options are defaults for the program's gens: {', '.join(run_options())}.",
                120,
                initial_indent=" " * 8,
                subsequent_indent=" " * 8,
                break_on_hyphens=False,
            )
            + "\n\n"
        ),
        text,
        count=1,
    )


def run_options() -> Iterable[str]:
    """The options of `run` with their defaults."""
    documented = {own: name for name, own in OTHER_NAMES.items()}
    for name, each in PROGRAM_OPTIONS.items():
        if name == "max_new_tokens":
            yield f"max_tokens ({each.default}; none for gens with a type or a constraint)"
        elif each.in_run:
            yield f"{documented.get(name, name)}{_default(each)}"


def _default(each: SamplingOption) -> str:
    return "" if each.default in (None, (), {}) or each.kind == "switch" else f" ({each.default})"


def page(text: str) -> str:
    """docs/language.md with the table."""
    begin, end = MADE.format("options"), MADE.format("end")
    return re.sub(re.escape(begin) + "(?s:.*?)" + re.escape(end), lambda _: begin + table() + end, text, count=1)


def table() -> str:
    """The options, and their names in each protocol."""
    rows = [
        "| option | default | range | what it does | " + " | ".join(TITLES[each] for each in PROTOCOLS) + " |",
        "|---" * (4 + len(PROTOCOLS)) + "|",
    ]
    documented = {own: name for name, own in OTHER_NAMES.items()}
    for name, each in PROGRAM_OPTIONS.items():
        shown = [f"`{documented.get(name, name)}`", _code(each), _range(each), each.doc]
        rows.append(f"| {' | '.join([*shown, *(_name(each, protocol) for protocol in PROTOCOLS)])} |")
    return "\n".join(rows) + "\n"


TITLES = {
    "native": "`/generate`",
    "openai": "OpenAI",
    "responses": "Responses",
    "messages": "Anthropic",
    "ollama": "Ollama",
}


def _range(each: SamplingOption) -> str:
    if each.low == -inf or 2.0**62 < each.high < inf:
        return "" if each.low == -inf else "64 bits"
    brackets = f"{'(' if each.open_low else '['}{each.low:g}, {each.high:g}{')' if each.high == inf else ']'}"
    return f"from {each.low:g}" if each.high == inf and not each.open_low else brackets


def _code(each: SamplingOption) -> str:
    return "" if each.default in (None, (), {}) else f"`{each.default}`"


def _name(each: SamplingOption, protocol: str) -> str:
    name = each.names.get(protocol)
    return "" if name is None else f"`{name}`{' +' if protocol in each.extends else ''}"


FILES: dict[str, Callable[[str], str]] = {
    "lang/sampling/gen_options.py": types,
    "lang/sgl_function.py": docstring,
    "docs/language.md": page,
}

if __name__ == "__main__":
    for name, made in FILES.items():
        path = ROOT / name
        path.write_text(made(path.read_text()))
