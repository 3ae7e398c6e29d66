"""JSON over HTTP, with errors of our own: what the network does, what a server says."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...errors import BadValueError, RemoteConnectionError, RemoteError, RemoteProtocolError, RemoteStatusError
from ..remote.remote_event_loop import PerEventLoop, remote_loop
from ..remote.retry_policy import public_url, status_error

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0  # of the small calls; generations are bounded by the backend
IDLE_SECONDS = 3.0  # servers close idle connections after 5
KEPT_SECONDS = 30.0


class HttpConnectionPool:
    """Idle clients of one event loop, the last used first; each holds one connection.

    One client for all would search all its connections at every call: with 64 calls at a time that takes five times the
    CPU time of the calls.
    """

    def __init__(self, new_client: Callable[[], httpx.AsyncClient]) -> None:
        self._new_client = new_client
        self._idle: deque[tuple[httpx.AsyncClient, float]] = deque()  # with the time of their last use

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        await self.close(idle=KEPT_SECONDS)
        client = self._idle.pop()[0] if self._idle else self._new_client()
        try:
            yield client
        except BaseException:
            await client.aclose()  # a call that was cut off may leave it with a connection that is never free
            raise
        self._idle.append((client, time.monotonic()))

    async def close(self, idle: float = 0.0) -> None:
        """Close those that were not used for `idle` seconds."""
        while self._idle and self._idle[0][1] <= time.monotonic() - idle:
            await self._idle.popleft()[0].aclose()


class JsonHttpClient:
    """Calls one server. The async calls run on the loop thread, `call_now` blocks in the caller's."""

    def __init__(self, base_url: str, api_key: str | None = None, verify: bool | str | None = None) -> None:
        if not _is_url(str(base_url)):
            raise BadValueError(f"base_url is {base_url!r}; give a URL such as http://127.0.0.1:30000")
        self.base_url = str(base_url).rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._verify = verify
        self._connections = PerEventLoop(lambda: HttpConnectionPool(self._new_client))

    async def post(self, path: str, body: Any) -> Any:
        """The JSON of the answer. Raises RemoteError."""
        return await self._json("POST", path, body)

    async def get(self, path: str) -> Any:
        return await self._json("GET", path)

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        with _network_errors(self.base_url + path):
            async with self._connections.get().one() as client:
                answer = await client.request(method, path, json=body)
        return _json_of(answer, self.base_url + path)

    async def events(self, path: str, body: Any) -> AsyncGenerator[dict[str, Any], None]:
        """The JSON objects of a stream of server-sent events, and {} for its end mark.

        Raises RemoteError for an error, in the head or in an event, and for a connection that breaks before
        the end mark.
        """
        url, ended = self.base_url + path, False
        try:
            with _network_errors(url):
                async with self._connections.get().one() as client, client.stream("POST", path, json=body) as answer:
                    if answer.status_code != 200:
                        await answer.aread()
                        _json_of(answer, url)
                    async with aclosing(event_data(answer.aiter_bytes())) as events:
                        async for data in events:
                            ended = data == "[DONE]"
                            yield {} if ended else _event(data, url)
        except RemoteConnectionError:
            if not ended:
                raise

    def call_now(self, method: str, path: str) -> Any:
        """A small call that blocks: the JSON of the answer, or its text. Raises RemoteError."""
        import httpx

        url = self.base_url + path
        with _network_errors(url), httpx.Client(**self._settings(ANSWER_SECONDS)) as client:
            answer = client.request(method, path)
        if answer.status_code == 200 and "json" not in answer.headers.get("content-type", ""):
            return answer.text
        return _json_of(answer, url)

    def close(self) -> None:
        """Close the connections that are kept open. The client can be used again."""
        connections = self._connections.peek()
        if connections is not None:
            asyncio.run_coroutine_threadsafe(connections.close(), remote_loop()).result(ANSWER_SECONDS)

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        limits = httpx.Limits(max_connections=1, keepalive_expiry=IDLE_SECONDS)
        return httpx.AsyncClient(limits=limits, **self._settings(None))

    def _settings(self, seconds: float | None) -> dict[str, Any]:
        import httpx

        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
        settings = {"base_url": self.base_url, "headers": self._headers, "verify": self._trust}
        return {**settings, "timeout": timeout}

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        """Made once: reading the certificates takes longer than a call."""
        import httpx

        if isinstance(self._verify, str):
            return ssl.create_default_context(cafile=self._verify)
        needed = self._verify is not False and self.base_url.startswith("https://")
        return httpx.create_ssl_context(verify=needed)


@contextmanager
def _network_errors(url: str) -> Iterator[None]:
    import httpx

    shown = public_url(url)
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise RemoteConnectionError(
            f"no server answers at {shown} ({_words(error)}); start one there or correct the URL",
            url=shown,
            retryable=True,
        ) from None
    except httpx.RequestError as error:
        raise RemoteConnectionError(
            f"the connection to {shown} broke before the answer was complete ({_words(error)})",
            url=shown,
            retryable=not isinstance(error, httpx.LocalProtocolError | httpx.DecodingError),
        ) from error


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _json_of(answer: httpx.Response, url: str) -> Any:
    if answer.status_code != 200:
        raise status_error(answer.status_code, _message_in(answer.text), url, answer.headers)
    return _parsed(answer.text, url)


def _event(data: str, url: str) -> dict[str, Any]:
    event = _parsed(data, url)
    if not isinstance(event, dict) or not event:
        raise RemoteProtocolError(f"{public_url(url)} sent an event that is not an object: {data[:200]!r}")
    if event.get("error"):
        raise event_error(event["error"], url)
    return event


def event_error(error: Any, url: str) -> RemoteError:
    """The error that a server reports inside of an answer that began well."""
    code = error.get("code") if isinstance(error, dict) else None
    message = _message_in(json.dumps({"error": error}))
    if isinstance(code, int) and 400 <= code < 600:
        return status_error(code, message, url)
    shown = public_url(url)
    return RemoteStatusError(f"{shown} says: {message}", url=shown)


def _parsed(text: str, url: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        shown = public_url(url)
        raise RemoteProtocolError(
            f"{shown} did not answer with JSON: {text[:200]!r}; does that server speak the native protocol?", url=shown
        ) from error


def _message_in(text: str) -> str:
    """The server's message in the body of an error."""
    try:
        found = json.loads(text)
    except ValueError:
        return text[:500]
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)[:500]


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


async def event_data(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """The data of each event. An event that the end of the bytes cuts is left out.

    Lines end at line feeds only: JSON may hold other characters that str.splitlines breaks at.
    """
    rest, lines = b"", []
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif not line and lines:
                yield b"\n".join(lines).decode(errors="replace")
                lines = []
