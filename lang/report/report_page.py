"""The page: data, style and script in one file of HTML."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

SCRIPTS = ("dom", "model", "tokens", "transcript", "details", "timeline", "tables", "search", "main")
HEIGHT = 760  # pixels in a notebook


class RunReport:
    """A page about runs. `html` is the whole page; notebooks show it in a separate frame."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"<report of {len(self.data['runs'])} runs; .save(path) writes it>"

    @cached_property
    def html(self) -> str:
        """The page. It loads nothing, and no script but its own may run in it."""
        script, style = _script(), _file("page.css")
        parts = {
            "policy": f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
            "base-uri 'none'; form-action 'none'",
            "title": html.escape(_printable(self.data["title"])),
            "style": style,
            "script": script,
            "data": data_text(self.data),
        }
        return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("page.html"))

    def save(self, path: str | Path) -> Path:
        """Write the page. Raises OSError."""
        target = Path(path)
        target.write_text(self.html, encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        return framed(self.html, "allow-scripts")


def framed(page: str, sandbox: str) -> str:
    """A page in a separate frame of a notebook, which may do what `sandbox` lists."""
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" sandbox="{sandbox}" title="sgl report" width="100%" '
        f'height="{HEIGHT}" style="border: 1px solid #8884; border-radius: 8px"></iframe>'
    )


def static_page(title: str, body: str) -> str:
    """A page without a script, in the style of reports. `body`: HTML; its texts are escaped."""
    style = _file("page.css")
    policy = f"default-src 'none'; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(_printable(title))}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        "</body>\n</html>\n"
    )


def data_text(data: dict[str, Any]) -> str:
    """JSON for a script element: no text can end the element, and unpaired surrogates are written as escapes."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "backslashreplace").decode()


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    body = "\n".join(_file(f"{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}}})();\n'
