"""Pictures and films as URLs, which is how remote servers take them."""

from __future__ import annotations

import base64
import io
import mimetypes
from pathlib import Path
from typing import Any

from ..backend import Media
from ..errors import BadValueError

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


def as_url(media: Media) -> str:
    """An http(s) URL as it is; a path, bytes or a PIL image as a data: URL. Raises BadValueError."""
    source = media.source
    if isinstance(source, str) and source.startswith(("http://", "https://", "data:")):
        return source
    data, kind = _bytes_of(media)
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _bytes_of(media: Media) -> tuple[bytes, str]:
    source = media.source
    if isinstance(source, bytes | bytearray):
        return bytes(source), _kind_of(bytes(source), media)
    if isinstance(source, str | Path):
        return _read(Path(str(source).removeprefix("file://")), media)
    if hasattr(source, "save"):
        return _png(source), "image/png"
    raise BadValueError(f"{media.kind} is of type {type(source).__name__}; give a path, a URL, bytes or a PIL image")


def _read(path: Path, media: Media) -> tuple[bytes, str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadValueError(f"cannot read the {media.kind} {str(path)!r}: {error.strerror or error}") from error
    return data, _kind_of(data, media, mimetypes.guess_type(path.name)[0])


def _kind_of(data: bytes, media: Media, default: str | None = None) -> str:
    """The MIME type by the first bytes, else by the name of the file."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    known = next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)
    return known or default or ("video/mp4" if media.kind == "video" else "image/png")


def _png(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
