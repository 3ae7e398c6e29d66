"""Pictures of a prompt as small ones for the page."""

from __future__ import annotations

import base64
import io
from typing import Any

from ..backend import Media
from ..errors import BadValueError
from ..media.media_urls import as_url

LARGEST = 100_000  # bytes of a data: URL that is put into the page as it is
SIDE = 320  # pixels of what a larger one is made
_KINDS = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp")


def media_data(media: Media) -> dict[str, Any]:
    """kind, what it is in words, and `url` (data:) where a picture can be shown. Nothing is fetched."""
    data: dict[str, Any] = {"kind": media.kind, "source": _words(media.source)}
    url = _url(media)
    if url is not None:
        data["url"] = url
    return data


def _words(source: Any) -> str:
    if isinstance(source, bytes | bytearray):
        return f"{len(source):,} bytes"
    if isinstance(source, str):
        return source if len(source) <= 200 else f"{source[:80]}... ({len(source):,} characters)"
    size = getattr(source, "size", None)
    return f"{type(source).__name__}, {size[0]} x {size[1]} pixels" if isinstance(size, tuple) else str(source)


def _url(media: Media) -> str | None:
    if media.kind != "image" or str(media.source).startswith(("http://", "https://")):
        return None
    try:
        url = as_url(media)
    except BadValueError:
        return None
    if not url.startswith(tuple(f"data:{kind};base64," for kind in _KINDS)):
        return None
    return url if len(url) <= LARGEST else _smaller(url)


def _smaller(url: str) -> str | None:
    """A thumbnail, if Pillow is there and can read the picture."""
    try:
        from PIL import Image

        image = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
    except (ImportError, OSError, ValueError):
        return None
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
