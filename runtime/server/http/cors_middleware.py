"""Pages of other sites may use the server from a browser, where its settings name their origins."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

EXPOSED = ("X-Request-Id", "Retry-After")  # headers of answers that pages may read
PREFLIGHT_SECONDS = 600


class CorsPolicyMiddleware(CORSMiddleware):
    """Answers preflights, which bring no API key, and marks what these origins may read.

    Never with credentials of the browser (cookies): keys come in headers that a page has to set itself.
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            allow_credentials=False,
            expose_headers=EXPOSED,
            max_age=PREFLIGHT_SECONDS,
        )
