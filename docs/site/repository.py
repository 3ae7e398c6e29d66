"""Files outside docs/ that a page links to become pages of the site: examples, notebooks, READMEs, sources.

A page links to them as it would on disk (`../examples/react.py`), so the same link works in a checkout and here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
FOLDERS = {"examples": "examples/README.md", "tutorials": "tutorials/README.md", "benchmarks": "benchmarks/README.md"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
LANGUAGES = {".py": "python", ".json": "json", ".sh": "bash", ".toml": "toml", ".txt": "text"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what the pages link to, and what those link to in turn."""
    waiting = [
        path for file in files.documentation_pages() for path in _linked(f"docs/{file.src_uri}", file.content_string)
    ]
    waiting += filter(lambda path: (ROOT / path).is_file(), FOLDERS.values())
    while waiting:
        path = waiting.pop()
        if path.startswith("docs/") or files.get_file_from_path(_place(path)) is not None:
            continue
        for made in _pages(path, config):
            files.append(made)
            if made.src_uri == _place(path) and made.is_documentation_page():
                waiting += _linked(path, made.content_string)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository become links of the site."""
    home = _repository_path(page.file.src_uri)
    if home is None:
        return markdown

    def moved(match: re.Match[str]) -> str:
        path, mark, anchor = match[2].partition("#")
        if not path or urlsplit(path).scheme:
            return match[0]
        place = _place(posixpath.normpath(posixpath.join(posixpath.dirname(home), path)))
        here = posixpath.dirname(page.file.src_uri)
        return match[1] + posixpath.relpath(place, here or ".") + mark + anchor + match[3]

    return LINK.sub(moved, markdown)


def _linked(home: str, markdown: str) -> Iterator[str]:
    """The repository's files that a page of it links to; what does not exist is left to the link check."""
    for match in LINK.finditer(markdown):
        path = match[2].partition("#")[0]
        if path and not urlsplit(path).scheme:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(home), path))
            if (ROOT / target).is_dir():
                target = FOLDERS.get(target, target)
            if (ROOT / target).is_file():
                yield target


def _place(path: str) -> str:
    """Where the site has a file of the repository."""
    path = FOLDERS.get(path, path)
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith((".md", ".svg", ".png", ".gif")) else path + ".md"


def _repository_path(place: str) -> str | None:
    """The file of the repository that a page shows; None for pages that are made for the site only."""
    for path in (f"docs/{place}", place, place.removesuffix(".md")):
        if (ROOT / path).is_file():
            return path
    return None


def _pages(path: str, config: MkDocsConfig) -> Iterator[File]:
    source = ROOT / path
    place = _place(path)
    if source.suffix in (".svg", ".png", ".gif"):
        yield File.generated(config, place, abs_src_path=str(source))
    elif source.suffix == ".ipynb":
        yield from _notebook(source, place, config)
    else:
        text = source.read_text()
        yield File.generated(config, place, content=text if source.suffix == ".md" else _source(path, text))


def _source(path: str, text: str) -> str:
    fence = "````"
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def _notebook(source: Path, place: str, config: MkDocsConfig) -> Iterator[File]:
    """A notebook with its kept outputs, as nbconvert writes it in Markdown."""
    from nbconvert import MarkdownExporter

    folder = f"{source.stem}_files"
    body, resources = MarkdownExporter().from_filename(str(source), resources={"output_files_dir": folder})
    yield File.generated(config, place, content=body)
    for name, data in resources["outputs"].items():
        yield File.generated(config, posixpath.join(posixpath.dirname(place), name), content=data)
