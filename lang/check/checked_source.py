"""The text to check: a Python file, or the code cells of a notebook joined into one text."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_IGNORE = re.compile(r"#\s*sgl:\s*ignore(?:\[([^\]]*)\])?")
_MAGIC = re.compile(r"^(\s*)([%!?].*|[\w.]+\?{1,2})$")
_MAGIC_VALUE = re.compile(r"^(\s*[\w, ]+=\s*)[%!].*$")
_REMOTE = re.compile(r"\b(RuntimeEndpoint|OpenAI|Anthropic|LiteLLM|VertexAI|Crusoe|select_sglang_backend)\b")


@dataclass
class SourceText:
    """`cells` gives for each line (from 0) of a notebook its cell and its line there, both from 1."""

    path: str
    text: str
    cells: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = self.text.splitlines()

    def parse(self) -> ast.Module:
        """The tree. Raises SyntaxError; a notebook may await at top level."""
        flags = ast.PyCF_ONLY_AST | (ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if self.cells else 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = compile(self.text, self.path, "exec", flags, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        return tree

    @property
    def is_remote(self) -> bool:
        """Whether programs may run on another engine than ours."""
        return _REMOTE.search(self.text) is not None

    def line(self, number: int) -> str:
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def place(self, line: int) -> tuple[int | None, int]:
        """(cell, line in it); no cell in a file."""
        if not self.cells:
            return None, line
        return self.cells[min(max(line, 1), len(self.cells)) - 1]

    def ignores(self, line: int, rule: str) -> bool:
        """Whether a comment on the line says to ignore the rule."""
        found = _IGNORE.search(self.line(line))
        if found is None:
            return False
        listed = found.group(1)
        return listed is None or rule in {part.strip() for part in listed.split(",")}


def read_source(path: Path) -> SourceText:
    """Raises OSError, ValueError for what is not a text or not a notebook."""
    text = path.read_text(encoding="utf-8-sig")
    return notebook_source(str(path), text) if path.suffix == ".ipynb" else SourceText(str(path), text)


def notebook_source(path: str, text: str) -> SourceText:
    """The code cells in their order, without magics. Raises ValueError if the text is not a notebook."""
    try:
        cells = json.loads(text)["cells"]
        return _joined(path, cells)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a notebook: {error!r}") from error


def _joined(path: str, cells: list[dict[str, object]]) -> SourceText:
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] != "code":
            continue
        source = cell["source"]
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        for place, line in enumerate(_without_magics(text), 1):
            lines.append(line)
            places.append((number, place))
    return SourceText(path, "\n".join(lines) + "\n", places or [(1, 1)])


def _without_magics(text: str) -> Iterator[str]:
    """The lines of a cell; what is not Python becomes `pass`, a whole cell in another language nothing."""
    lines = text.splitlines()
    other = bool(lines) and lines[0].startswith("%%") and not lines[0].startswith(("%%time", "%%capture"))
    for line in lines:
        if other:
            yield ""
        elif found := _MAGIC.match(line):
            yield f"{found.group(1)}pass"
        else:
            yield _MAGIC_VALUE.sub(r"\1None", line)
