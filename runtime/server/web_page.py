"""GET /: a page to chat, to look at constrained output and at the engine. Everything it loads is ours."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from .http.http_errors import RequestError

FOLDER = Path(__file__).parent / "web"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> Response:
    return _file("index.html")


@router.get("/page/{name}")
async def part(name: str) -> Response:
    return _file(name)


def _file(name: str) -> Response:
    path = FOLDER / name
    if path.suffix not in TYPES or path.name not in {each.name for each in FOLDER.iterdir()}:
        raise RequestError(f"there is nothing at /page/{name}", status=404)
    return Response(path.read_bytes(), headers=HEADERS, media_type=TYPES[path.suffix])
