"""Files under an address of the web, read by ranges."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx

from ...errors import CheckpointError
from .http_redirects import require_allowed
from .remote_store import LONGEST, SECONDS, RemoteFile, again, changed, lost, shown_url

AT_A_TIME = 8  # files that are looked for
PLAIN = {"Accept-Encoding": "identity"}  # ranges count the bytes of the file


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
