"""What is wrong with a document, and packages that are missing to read it."""

from __future__ import annotations

import importlib
from typing import Any

from sgl.lang.backends.apis.provider_sdk import MissingPackageError
from sgl.lang.errors import LanguageError


class DocumentError(LanguageError, ValueError):
    """A document that cannot be read. `source` is its name, `page` the number of the page, from 1, or None."""

    def __init__(self, source: str, message: str, page: int | None = None) -> None:
        super().__init__(f"{source}: {message}")
        self.source = source
        self.page = page

    def __reduce__(self) -> Any:
        message = str(self).removeprefix(f"{self.source}: ")
        return type(self), (self.source, message, self.page)


def require_reader(module: str, kind: str) -> Any:
    """Import a package that reads documents of a kind, such as "PDF". Raises MissingPackageError."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"reading {kind} needs the package {module.partition('.')[0]!r}: pip install 'sgl[documents]' ({error})"
        ) from error
