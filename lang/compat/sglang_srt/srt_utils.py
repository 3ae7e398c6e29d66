"""What programs import of `sglang.srt`: pictures, processes, the tokenizer, the regex of a schema."""

from __future__ import annotations

import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from ...backends.apis.provider_sdk import MissingPackageError
from ...sampling.options import schema_text
from ..local_backend import hugging_face_tokenizer
from ..server_launch import kill_process_tree
from ..sglang_alias_settings import choose_model

__all__ = [
    "build_regex_from_object",
    "get_tokenizer",
    "is_cuda",
    "is_hip",
    "kill_child_process",
    "kill_process_tree",
    "load_image",
]


def load_image(image_file: Any) -> tuple[Any, tuple[int, int]]:
    """A PIL image of a path, a URL, base64 text, bytes or an image; and its (width, height)."""
    try:
        pillow = import_module("PIL.Image")
    except ImportError as error:
        raise MissingPackageError("pictures need Pillow: pip install pillow") from error
    if isinstance(image_file, pillow.Image):
        return image_file, image_file.size
    image = pillow.open(io.BytesIO(_image_bytes(image_file)))
    return image, image.size


def _image_bytes(source: Any) -> bytes:
    if isinstance(source, bytes):
        return source
    text = str(source)
    if text.startswith(("http://", "https://")):
        import httpx

        return httpx.get(text, follow_redirects=True, timeout=30).raise_for_status().content
    if text.startswith("data:"):
        text = text.partition(",")[2]
    elif len(text) < 4096 and Path(text.removeprefix("file://")).is_file():
        return Path(text.removeprefix("file://")).read_bytes()
    import base64

    return base64.b64decode(text)


def is_hip() -> bool:
    """Whether this torch is one for AMD's devices."""
    return getattr(_torch_version(), "hip", None) is not None


def is_cuda() -> bool:
    return getattr(_torch_version(), "cuda", None) is not None and bool(import_module("torch").cuda.is_available())


def _torch_version() -> Any:
    return import_module("torch").version


def kill_child_process(pid: int | None = None, include_self: bool = False, skip_pid: int | None = None) -> None:
    """The old name of kill_process_tree."""
    kill_process_tree(pid, include_self, skip_pid)


def get_tokenizer(tokenizer_name: str, *args: Any, tokenizer_mode: str = "auto", **options: Any) -> Any:
    """The tokenizer of the model that the program gets when it asks for this one."""
    path = choose_model(tokenizer_name).path
    if path is None:
        from ...backends.default_backend import shared_engine

        path = shared_engine().model_path
    return hugging_face_tokenizer(
        path, **{name: value for name, value in options.items() if name != "tokenizer_revision"}
    )


def build_regex_from_object(object: Any, whitespace_pattern: str | None = None) -> str:
    """A regular expression whose texts are JSON of a pydantic class or of a schema (text or dict)."""
    from outlines_core.json_schema import build_regex_from_schema

    schema = object if isinstance(object, str) else schema_text(object)
    json.loads(schema)  # raises for a text that is not valid JSON
    return str(build_regex_from_schema(schema, whitespace_pattern))
