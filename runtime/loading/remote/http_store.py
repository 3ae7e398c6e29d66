"""Files under an address of the web, read by ranges."""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx

from ...errors import CheckpointError
from .remote_store import LONGEST, SECONDS, RemoteFile, again, changed, lost, shown_url

AT_A_TIME = 8  # files that are looked for
PLAIN = {"Accept-Encoding": "identity"}  # ranges count the bytes of the file
PORTS = {"http": 80, "https": 443}


class HttpStore:
    def __init__(self, url: str) -> None:
        self.url, self._base, first = shown_url(url), url, httpx.URL(url)
        limits = httpx.Limits(max_connections=2 * AT_A_TIME, max_keepalive_connections=2 * AT_A_TIME)
        hooks = {"request": [lambda request: require_allowed(first, request.url)]}  # of each redirect too
        self._client = httpx.Client(
            timeout=SECONDS, follow_redirects=True, limits=limits, headers=PLAIN, event_hooks=hooks
        )

    def find(self, wanted: Iterable[str]) -> dict[str, RemoteFile]:
        names = list(wanted)
        with ThreadPoolExecutor(AT_A_TIME, "sgl-find") as pool:
            return {
                name: file for name, file in zip(names, pool.map(self._find, names), strict=True) if file is not None
            }

    def _find(self, name: str) -> RemoteFile | None:
        try:
            answer = again(lambda: self._client.head(self._address(name)), (httpx.TransportError,))
        except httpx.HTTPError as error:
            raise lost(self, name, error) from error
        if answer.status_code in (404, 410):
            return None
        size = answer.headers.get("Content-Length", "")
        if answer.status_code != 200 or not size.isdecimal():
            raise lost(self, name, f"the server answers {answer.status_code} and {'no' if not size else 'a'} length")
        return RemoteFile(int(size), _tag(answer))

    def read(self, name: str, file: RemoteFile, start: int, count: int) -> bytes:
        if not count:
            return b""
        try:
            data: bytes = again(lambda: self._read(name, file, start, count), (httpx.TransportError,))
        except httpx.HTTPError as error:
            raise lost(self, name, f"bytes {start:,} to {start + count:,}: {error or type(error).__name__}") from error
        return data

    def _read(self, name: str, file: RemoteFile, start: int, count: int) -> bytes:
        asked = {"Range": f"bytes={start}-{start + count - 1}"}
        with self._client.stream("GET", self._address(name), headers=asked) as answer:
            self._check(answer, name, file, start, count)
            data, until = bytearray(), time.monotonic() + LONGEST
            for part in answer.iter_raw():
                data += part
                if len(data) > count or time.monotonic() > until:
                    break
        if len(data) != count:
            raise lost(self, name, f"{len(data):,} bytes came for {count:,} from byte {start:,} on")
        return bytes(data)

    def _check(self, answer: httpx.Response, name: str, file: RemoteFile, start: int, count: int) -> None:
        """That these are the bytes that were asked for, of the file that was found."""
        if answer.status_code not in (200, 206):
            raise lost(self, name, f"the server answers {answer.status_code} {answer.reason_phrase}")
        if _tag(answer) != file.tag:
            raise changed(self, name, file, _tag(answer) or "no tag")
        whole = (start, start + count) == (0, file.size)
        if answer.status_code == 200 and not whole:
            raise lost(self, name, "the server does not answer ranges of a file; use one that does")
        said = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
        if answer.status_code == 206 and (
            said is None or tuple(map(int, said.groups())) != (start, start + count - 1, file.size)
        ):
            raise changed(self, name, file, answer.headers.get("Content-Range", "no Content-Range"))
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise CheckpointError(
                f"{self.url}/{name} comes compressed, which a range cannot be; let the server send it as it is"
            )

    def _address(self, name: str) -> str:
        return f"{self._base}/{quote(name)}"


def _tag(answer: httpx.Response) -> str:
    found: str = answer.headers.get("ETag") or answer.headers.get("Last-Modified", "")
    return found


connect = HttpStore


def require_allowed(first: httpx.URL, to: httpx.URL) -> None:
    """A server may send who reads a model to public addresses of other hosts; any other is one that the user names.

    first: of the address that the user gave.  to: asked now, by itself or by a redirect. Raises CheckpointError before
    anything is sent there.
    """
    if _origin(first) == _origin(to):
        return
    if to.scheme not in PORTS or (first.scheme, to.scheme) == ("https", "http"):
        raise _not_followed(first, to, f"{to.scheme}:// instead of {first.scheme}://")
    if to.host == first.host and _port(first) == PORTS[first.scheme] and _port(to) == PORTS[to.scheme]:  # http to https
        return
    if (private := _private(to)) is not None:
        raise _not_followed(first, to, f"which is not public ({private})")


def _not_followed(first: httpx.URL, to: httpx.URL, why: str) -> CheckpointError:
    return CheckpointError(
        f"{shown_url(str(first))} redirects to {shown_url(str(to))}, {why}: that is not followed; give this address "
        "yourself if the model is there"
    )


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, _port(url)


def _port(url: httpx.URL) -> int | None:
    return url.port or PORTS.get(url.scheme)


def _private(url: httpx.URL) -> str | None:
    """An address of the host that is not of the public network.

    None: there is none, or the name is known to a proxy alone.
    """
    try:
        found = socket.getaddrinfo(url.host, url.port or PORTS[url.scheme], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    addresses = [str(place[4][0]).partition("%")[0] for place in found]
    return next((address for address in addresses if not _is_public(address)), None)


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address)
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return found.is_global and not found.is_multicast and (inner is None or inner.is_global)
