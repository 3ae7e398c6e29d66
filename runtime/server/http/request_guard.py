"""What is looked at before a request is read: how it is framed, HEAD, and which site made a browser send it."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from ..request_context import key_of
from ..server_settings import ServerSettings
from .http_errors import RequestError
from .middleware import HttpMiddleware, answer_error

CHANGING = frozenset({"/flush_cache"})  # paths whose GET changes something
_TWO_LENGTHS = (
    "the request has both Content-Length and Transfer-Encoding, so that its end is not sure; send one of them"
)
_ELSEWHERE = "a page of another site made the browser ask this; only pages of this server may"


class RequestGuard(HttpMiddleware):
    """Refuses requests whose end is ambiguous, and answers HEAD as GET without a body."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:
            error = RequestError(_TWO_LENGTHS, None, "ambiguous_length")
            return await answer_error(error, scope, receive, send, {"Connection": "close"})
        if scope["method"] == "HEAD" and scope["path"] not in CHANGING:
            return await self._head(scope, receive, send)
        await self.app(scope, receive, send)

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bodiless(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        asked = {**scope, "method": "GET"}
        await self.app(asked, receive, bodiless)
        scope["route"] = asked.get("route")


def check_site(headers: Headers) -> None:
    """Raise RequestError where a browser sent a request for a page of another site, as `<img>` and forms make it.

    Browsers say so in Sec-Fetch-Site, which they leave out where they do not trust the connection; then Origin tells,
    which requests of images lack: of these a browser's own name is enough. Programs send none of the three.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        elsewhere = site not in ("same-origin", "none")
    elif origin is not None:
        elsewhere = urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    else:
        elsewhere = headers.get("user-agent", "").startswith("Mozilla/")
    if elsewhere:
        raise RequestError(_ELSEWHERE, None, "wrong_site", 403)


def check_owner(headers: Headers, settings: ServerSettings, what: str) -> None:
    """Raise RequestError where a request would change what others share: for a page elsewhere, and without the admin
    key.

    Where there is none, one of several API keys that are kept apart is refused.
    """
    check_site(headers)
    if settings.admin_key is not None:
        if not hmac.compare_digest(key_of(headers), settings.admin_key.encode()):
            raise RequestError(
                f"{what} shared with others, and changed with the admin key alone: 'Authorization: Bearer KEY'",
                None,
                "admin_key_wanted",
                403,
            )
        return
    if settings.isolated and len(settings.api_keys) > 1:
        raise RequestError(f"{what} shared with other API keys, and cannot be changed by one of them", status=403)
