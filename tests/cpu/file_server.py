"""A server of a folder's files over HTTP, in this process, which answers ranges and can be
told to fail; also as the hub of one repository.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = "c" * 40
Hook = Callable[["Handler", str, bytes], bool]  # True: it answered, or closed the connection


class FileServer(ThreadingHTTPServer):
    """asked: "GET /path range" of each request.  hook: sees a request first.  ranges, tags: whether it answers
    them.  moved: an address to which it redirects everything.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.asked, self.hook = folder, list[str](), lambda *_: False
        self.hook: Hook
        self.ranges = self.tags = True
        self.moved = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: Any) -> None: ...


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FileServer

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self.server.asked.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
        if self.path.startswith("/api/models/"):
            return self.send(200, json.dumps(self._told()).encode(), {"Content-Type": "application/json"})
        if self.server.moved:
            return self.send(302, b"", {"Location": f"{self.server.moved}{self.path}"})
        file = self.server.folder / re.sub(r"^/[^/]+/[^/]+/resolve/[^/]+/", "/", self.path).lstrip("/")
        if not file.is_file():
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
        data = file.read_bytes()
        if body and self.server.hook(self, file.name, data):
            return None
        return self._send_file(data, body)

    def _told(self) -> Any:
        """What the hub says of the repository."""
        names = sorted(
            file.relative_to(self.server.folder).as_posix() for file in self.server.folder.rglob("*") if file.is_file()
        )
        if "/tree/" in self.path:
            return [
                {"type": "file", "path": name, "size": (self.server.folder / name).stat().st_size, "oid": "0" * 40}
                for name in names
            ]
        return {
            "id": "acme/tiny",
            "sha": COMMIT,
            "siblings": [{"rfilename": name, "size": (self.server.folder / name).stat().st_size} for name in names],
        }

    def _send_file(self, data: bytes, body: bool) -> None:
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if self.server.tags:
            headers["ETag"] = f'"{hashlib.sha1(data).hexdigest()}"'
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if self.server.ranges else None
        if asked is None:
            return self.send(200, data if body else b"", headers, len(data))
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return self.send(206, data[first : last + 1] if body else b"", headers, last + 1 - first)

    def send(self, status: int, data: bytes, headers: dict[str, str], length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def served(folder: Path) -> Iterator[FileServer]:
    server = FileServer(folder)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
