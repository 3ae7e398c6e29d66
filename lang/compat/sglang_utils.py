"""`sglang.utils`: the small helpers that programs import."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from ..program.program_state import ProgramState
from ..sampling.options import schema_text
from .server_launch import execute_shell_command, launch_server_cmd, terminate_process, wait_for_server

__all__ = [
    "HttpResponse",
    "async_stream_and_merge",
    "convert_json_schema_to_str",
    "download_and_cache_file",
    "dump_state_text",
    "execute_shell_command",
    "http_request",
    "is_in_ci",
    "launch_server_cmd",
    "normalize_base_url",
    "print_highlight",
    "read_jsonl",
    "stream_and_merge",
    "terminate_process",
    "trim_overlap",
    "wait_for_server",
]


def read_jsonl(filename: str) -> list[Any]:
    """The values of a file with one JSON value a line; lines that begin with # are left out."""
    lines = Path(filename).read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line.strip() and not line.startswith("#")]


def dump_state_text(filename: str, states: Iterable[Any], mode: str = "w") -> None:
    """Write the texts of states one after another, numbered; of other values what str() gives."""
    with open(filename, mode, encoding="utf-8") as file:
        for index, state in enumerate(states):
            text = state.text() if isinstance(state, ProgramState) else str(state)
            file.write(f"{'=' * 30} {index} {'=' * 30}\n{text}\n\n")


def download_and_cache_file(url: str, filename: str | None = None) -> str:
    """The path of a file with what is at the URL; it is fetched only if the file is not there yet."""
    path = Path(filename or Path(tempfile.gettempdir()) / url.rsplit("/", 1)[-1])
    if not path.exists():
        import httpx

        print(f"Downloading from {url} to {path}")
        part = path.with_name(path.name + ".part")
        with httpx.stream("GET", url, follow_redirects=True) as reply, open(part, "wb") as file:
            reply.raise_for_status()
            for chunk in reply.iter_bytes():
                file.write(chunk)
        part.rename(path)
    return str(path)


class HttpResponse:
    """The answer of `http_request`."""

    def __init__(self, reply: Any) -> None:
        self.resp = reply
        self.status_code: int = reply.status_code

    def json(self) -> Any:
        return self.resp.json()

    @property
    def text(self) -> str:
        return str(self.resp.text)


def http_request(
    url: str,
    json: Any = None,
    stream: bool = False,
    api_key: str | None = None,
    verify: str | None = None,
    method: str | None = None,
) -> HttpResponse:
    """GET, or POST of a JSON value. With `stream` the body may be read by `resp.iter_lines()`."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    verified = True if verify is None else verify
    method = method or ("GET" if json is None else "POST")
    client = httpx.Client(headers=headers, verify=verified, timeout=None)
    request = client.build_request(method, url, json=json)
    return HttpResponse(client.send(request, stream=stream))


def is_in_ci() -> bool:
    return os.environ.get("SGLANG_IS_IN_CI", "").lower() in ("1", "true")


def print_highlight(html_content: Any) -> None:
    """Show a text: marked in a notebook, plain elsewhere."""
    text = str(html_content)
    if not _in_notebook():
        print(text)
        return
    display = import_module("IPython.display")
    display.display(display.HTML(f"<strong style='color: #00008B;'>{text.replace(chr(10), '<br>')}</strong>"))


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


def normalize_base_url(host: str, port: int) -> str:
    """The URL of a host that may be written with or without its scheme."""
    return f"{host}:{port}" if host.startswith(("http://", "https://")) else f"http://{host}:{port}"


def convert_json_schema_to_str(json_schema: Any) -> str:
    """JSON text of a schema given as text, dict or pydantic class."""
    return schema_text(json_schema)


def trim_overlap(existing_text: str, new_chunk: str) -> str:
    """The new part of a chunk, which may repeat the end of the text before it."""
    longest = min(len(existing_text), len(new_chunk))
    overlap = next((n for n in range(longest, 0, -1) if existing_text.endswith(new_chunk[:n])), 0)
    return new_chunk[overlap:]


def stream_and_merge(llm: Any, prompt: str, sampling_params: dict[str, Any]) -> str:
    """The whole text of a streamed answer."""
    text = ""
    for answer in llm.generate(prompt, sampling_params, stream=True):
        text = answer["text"]
    return text


async def async_stream_and_merge(llm: Any, prompt: str, sampling_params: dict[str, Any]) -> AsyncIterator[str]:
    """The new pieces of a streamed answer."""
    sent = 0
    async for answer in await llm.async_generate(prompt, sampling_params, stream=True):
        yield answer["text"][sent:]
        sent = len(answer["text"])
