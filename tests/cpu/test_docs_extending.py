"""The Python of docs/extending.md runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_rig import serving_app

from sgl.runtime import Engine
from sgl.runtime.server.server_app import create_app

PAGE = Path(__file__).parents[2] / "docs/extending.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.strip().splitlines()[-1][:40])
def test_block(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl.runtime.models.families import family_registry

    monkeypatch.setattr(family_registry, "FAMILIES", dict(family_registry.FAMILIES))
    exec(compile(block, str(PAGE), "exec"), {"__name__": "extending"})


def test_there_are_blocks() -> None:
    assert len(BLOCKS) == 4


def test_the_protocol_answers(bundled: Engine) -> None:
    names: dict[str, Any] = {"__name__": "extending"}
    exec(compile(next(block for block in BLOCKS if "ApiAdapter" in block), str(PAGE), "exec"), names)
    app = create_app(bundled)
    app.include_router(names["router"])
    with serving_app(app) as url:
        asked = {"question": "Hello"}
        reply = httpx.post(f"{url}/ask", json=asked).json()["reply"]
        *lines, done, _ = httpx.post(f"{url}/ask", json=asked | {"stream": True}).text.split("\n\n")
        wrong = httpx.post(f"{url}/ask", json={"questoin": "Hello"})
        document = httpx.get(f"{url}/openapi.json").json()
    assert reply and done == "data: [DONE]" and all(json.loads(line.removeprefix("data: "))["reply"] for line in lines)
    assert wrong.status_code == 400 and "did you mean 'question'?" in wrong.json()["error"]["message"]
    assert {"200", "400", "504"} <= document["paths"]["/ask"]["post"]["responses"].keys()
