"""Adapters as models of a server: names, a folder, allow lists, admin routes, metrics."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from pathlib import Path

import httpx
import pytest
import torch
import transformers
from peft_adapters import make_adapter
from server_rig import serving

from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.server.http.http_errors import RequestError
from sgl.runtime.server.request_context import ADAPTER
from sgl.runtime.server.served_adapters import ServedAdapters, is_usable
from sgl.runtime.server.server_settings import ServerSettings

PROMPT = "Say what the weather is like: "
BASE = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("served")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    for i, name in enumerate(["sql", "law", "tiny:odd"]):
        make_adapter(model, path / name, seed=i)
    broken = path / "broken"
    shutil.copytree(path / "law", broken)
    (broken / "adapter_model.safetensors").write_bytes(b"no tensors")
    (path / "notes.txt").write_text("no adapter")
    return path


@pytest.fixture
def engine(tiny, folder):
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=4096, adapters={"given": folder / "law"}) as engine:
        yield engine


def text_of(engine: Engine, adapter: str | None) -> str:
    sequence = engine.open(adapter=adapter)
    sequence.extend(engine.tokenizer.encode(PROMPT, special_prefix=True))
    return sequence.generate(SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)).result().text


def ask(url: str, model: str | None, key: str = "") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{url}/v1/completions", json={**BASE, "model": model}, headers=headers)


def test_adapters_are_models_by_their_names(engine, folder):
    with serving(engine, served_name=("tiny", "tiny:x", "sql"), adapters=str(folder)) as url:
        wanted = {
            None: "",
            "tiny": "",
            "tiny:x": "",
            "sql": "",
            "given": "law",
            "tiny:given": "law",
            "tiny:x:given": "law",
            "law": "law",
            "tiny:sql": "sql",
        }
        found = {}
        for name in wanted:
            answer = ask(url, name).json()
            assert answer["model"] == (name or "tiny")
            found[name] = answer["choices"][0]["text"]
        engine.adapters.load("other", folder / "sql")
        texts = {"": text_of(engine, None), "law": text_of(engine, "law"), "sql": text_of(engine, "other")}
        assert len(set(texts.values())) == 3
        assert found == {name: texts[adapter] for name, adapter in wanted.items()}
        models = {model["id"]: model for model in httpx.get(f"{url}/v1/models").json()["data"]}
        assert models.keys() == {"tiny", "tiny:x", "sql", "tiny:sql", "given", "law", "other", "broken"}
        assert (
            models["law"]["parent"] == "tiny" and "parent" not in models["sql"] and models["tiny:sql"]["root"] == "sql"
        )
        assert httpx.get(f"{url}/v1/models/tiny:law").json()["root"] == "law"


def test_names_lead_nowhere_else(engine, folder):
    shutil.copytree(folder / "sql", folder.parent / "outside", dirs_exist_ok=True)
    with serving(engine, served_name="tiny", adapters=str(folder)) as url:
        for name in (
            "../outside",
            "tiny:../outside",
            str(folder / "sql"),
            "./sql",
            "sql/",
            ".",
            "..",
            "sql/../law",
            "tiny:odd",
            "a\0b",
            "nope",
            "notes.txt",
        ):
            answer = ask(url, name)
            assert answer.status_code == 404, name
        message = answer.json()["error"]["message"]
        assert "'tiny'" in message and "'given', 'law', 'sql'" in message
        assert [info.name for info in engine.adapters.list()] == ["given"]
        answer = ask(url, "broken")
        assert answer.status_code == 500 and "log says why" in answer.text and str(folder) not in answer.text


def test_what_is_usable_as_a_name():
    assert all(map(is_usable, ("sql", "v1.2", "a_b-c", "7")))
    assert not any(
        map(is_usable, ("", ".", "..", "a..b", "/a", "a/b", "a\\b", "-a", ".a", "a b", "a:b", "ä", "a" * 101, "a\n"))
    )


def test_every_route_takes_an_adapter(engine, folder):
    chat = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 6}
    calls = {
        "/v1/chat/completions": chat,
        "/v1/messages": chat,
        "/v1/responses": {"input": PROMPT, "temperature": 0, "max_output_tokens": 6},
        "/api/chat": {"messages": chat["messages"], "stream": False, "options": {"num_predict": 6}},
        "/v1/embeddings": {"input": PROMPT},
        "/v1/completions": {**BASE, "n": 2, "stream": True},
    }
    with serving(engine, served_name="tiny", adapters=str(folder)) as url:
        for route, body in calls.items():
            before = opened(engine)
            plain = httpx.post(url + route, json={**body, "model": "tiny"})
            assert plain.status_code == 200 and opened(engine) == before, (route, plain.text)
            adapted = httpx.post(url + route, json={**body, "model": "tiny:sql"})
            assert adapted.status_code == 200 and opened(engine) > before, (route, adapted.text)
        page = httpx.get(f"{url}/metrics").text
        assert f'sgl_adapter_requests_total{{adapter="sql"}} {len(calls)}.0' in page
        assert 'sgl_adapter_generated_tokens_total{adapter="sql"}' in page


def test_the_native_route_takes_names_of_adapters(engine, folder):
    params = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
    with serving(engine, served_name="tiny", adapters=str(folder)) as url:

        def native(lora: object, text: object = PROMPT, **more: object) -> httpx.Response:
            return httpx.post(
                f"{url}/generate", json={"text": text, "sampling_params": params, "lora_path": lora, **more}
            )

        texts = [native(name).json()["text"] for name in (None, "", "sql", "given")]
        assert texts[0] == texts[1] and len(set(texts)) == 3
        mixed = native(["given", None, "sql"], [PROMPT] * 3, return_logprob=True, logprob_start_len=0).json()
        assert [one["text"] for one in mixed] == [texts[3], texts[0], texts[2]]
        scores = [[pair[0] for pair in one["meta_info"]["input_token_logprobs"][1:]] for one in mixed]
        assert scores[0] != scores[1] != scores[2]
        streamed = native("sql", stream=True).text.split("data: ")[-2]
        assert json.loads(streamed)["text"] == texts[2]
        for name in ("../outside", str(folder / "sql"), "nope", "tiny:odd"):
            refused = native(name)
            assert (
                refused.status_code == 404
                and "'given'" in refused.text
                and str(folder) not in refused.text.replace(name, "")
            ), name
        assert 'sgl_adapter_requests_total{adapter="sql"} 2.0' in httpx.get(f"{url}/metrics").text


def test_an_admin_key_is_asked_for(engine, folder):
    with serving(
        engine, served_name="tiny", adapters=str(folder), api_keys=frozenset({"one", "two"}), admin_key="root"
    ) as url:

        def post(path: str, key: str, body: dict | None = None) -> int:
            return httpx.post(url + path, json=body, headers={"Authorization": f"Bearer {key}"}).status_code

        for path, body in (
            ("/adapters/load", {"name": "sql"}),
            ("/adapters/unload", {"name": "sql"}),
            ("/flush_cache", None),
        ):
            assert [post(path, key, body) for key in ("one", "nobody", "root")] == [403, 401, 200], path
        assert httpx.get(f"{url}/adapters", headers={"X-Api-Key": "one"}).status_code == 403
        assert httpx.get(f"{url}/adapters", headers={"X-Api-Key": "root"}).status_code == 200
    with serving(engine, served_name="tiny", adapters=str(folder), admin_key="root") as url:
        assert ask(url, "sql").status_code == 200  # open but for the routes of its owner
        assert (
            post("/adapters/load", "root", {"name": "sql"}) == 200
            and httpx.post(f"{url}/adapters/load", json={"name": "sql"}).status_code == 403
        )
    with pytest.raises(ConfigError, match="admin_key"):
        ServerSettings(api_keys=frozenset({"one"}), admin_key="one")


def opened(engine: Engine) -> int:
    return sum(info.opened for info in engine.adapters.list() if info.name == "sql")


def test_loading_and_unloading(engine, folder):
    with serving(engine, served_name="tiny", adapters=str(folder)) as url:

        def post(what: str, **body: object) -> httpx.Response:
            return httpx.post(f"{url}/adapters/{what}", json=body)

        info = post("load", name="sql", pin=True).json()
        assert info["name"] == "sql" and info["pinned"] and "path" not in info
        assert {one["name"] for one in httpx.get(f"{url}/adapters").json()["loaded"]} == {"given", "sql"}
        sequence = engine.open(adapter="sql")
        assert post("unload", name="sql").status_code == 409
        sequence.close()
        assert post("unload", name="given").json() == {"unloaded": "given"}
        assert ask(url, "given").status_code == 404
        assert post("load", name="given").status_code == 404 and post("unload", name="nope").status_code == 404
        assert post("load", name="../outside").status_code == 404 and post("load", name="broken").status_code == 400
        assert post("load", name="sql", path="/etc").status_code == 400
        foreign = httpx.post(
            f"{url}/adapters/unload", json={"name": "sql"}, headers={"Origin": "http://elsewhere.example"}
        )
        assert foreign.status_code == 403


def unload(engine: Engine, name: str) -> None:
    """The server closes a request's sequence when its answer is out, which may be a moment after the client has it."""
    for _ in range(100):
        try:
            return engine.adapters.unload(name)
        except ConfigError:
            time.sleep(0.05)
    engine.adapters.unload(name)


def test_an_adapter_that_is_unloaded_behind_the_server_is_loaded_again(engine, folder):
    with serving(engine, served_name="tiny", adapters=str(folder)) as url:
        first = ask(url, "sql").json()["choices"]
        unload(engine, "sql")
        assert ask(url, "sql").status_code == 404
        assert ask(url, "sql").json()["choices"] == first


def test_tenants_see_what_they_may_use(engine, folder, tmp_path):
    settings = {
        "api_keys": frozenset({"one", "two"}),
        "allowed_adapters": {"one": ("sql",)},
        "log_requests": str(tmp_path / "log"),
    }
    engine.info()["adapters"]["outside"]["given"] = "DoRA"  # as an engine says that began with such a one
    with serving(engine, served_name="tiny", adapters=str(folder), **settings) as url:
        assert ask(url, "sql", "one").status_code == 200 and ask(url, "law", "two").status_code == 200
        refused = ask(url, "law", "one")
        assert refused.status_code == 404 and "'sql'" in refused.text and "given" not in refused.text
        listed = httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer one"}).json()["data"]
        assert [model["id"] for model in listed] == ["tiny", "sql"]
        for route in ("server_info", "metrics"):
            one, two = (
                httpx.get(f"{url}/{route}", headers={"Authorization": f"Bearer {key}"}).text for key in ("one", "two")
            )
            assert "sql" in one and "sql" in two and '"law"' in two and '"law"' not in one and '"given"' not in one, (
                route
            )
        assert (
            httpx.post(
                f"{url}/adapters/unload", json={"name": "law"}, headers={"Authorization": "Bearer one"}
            ).status_code
            == 403
        )
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line.get("adapter") for line in lines][:2] == ["sql", "law"]


def test_settings_that_cannot_be(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        ServerSettings(adapters=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="none of api_keys"):
        ServerSettings(allowed_adapters={"x": ("sql",)})


def test_vectors_of_adapters(engine, folder):
    with serving(engine, served_name="tiny", adapters=str(folder)) as url:

        def encode(lora: object, text: object = PROMPT) -> httpx.Response:
            return httpx.post(f"{url}/encode", json={"text": text, "lora_path": lora})

        vectors = [encode(name).json()["embedding"] for name in (None, "", "given")]
        assert (
            vectors[0] == vectors[1] == engine.embed([PROMPT])[0].tolist()
            and vectors[2] == engine.embed([PROMPT], adapter="given")[0].tolist()
        )
        assert vectors[0] != vectors[2]
        mixed = encode(["given", None, "sql"], [PROMPT] * 3).json()
        assert [one["embedding"] for one in mixed[:2]] == [vectors[2], vectors[0]] and opened(engine)
        assert encode("nope").status_code == 404 and "lora_path" in encode(["sql"], [PROMPT] * 2).text


@pytest.mark.parametrize("pinned", [False, True])
def test_many_who_ask_at_once_have_it_read_once(engine, folder, pinned, monkeypatch):
    """And where an admin loads it meanwhile, it stays pinned."""
    served, kind, reads = ServedAdapters(engine, ServerSettings(adapters=str(folder))), type(engine.adapters), []
    real = kind.load

    def slow(self, name, path, pin=False):
        reads.append(pin)
        time.sleep(0.1)
        return real(self, name, path, pin=pin)

    async def wanted() -> list[str | None]:
        admin = asyncio.create_task(asyncio.to_thread(served.load, "sql", True)) if pinned else None
        await asyncio.sleep(0.02)
        ADAPTER.set("sql")
        found = await asyncio.gather(*(served.ready() for _ in range(6)))
        return found if admin is None else [*found, (await admin).name]

    monkeypatch.setattr(kind, "load", slow)
    assert set(asyncio.run(wanted())) == {"sql"} and reads == [pinned]
    assert [info.pinned for info in engine.adapters.list() if info.name == "sql"] == [pinned]


def test_what_cannot_be_used_is_not_read_for_every_request(engine, folder, monkeypatch):
    """Until its files are others; meanwhile others load theirs."""
    served, kind, reads, gate = (
        ServedAdapters(engine, ServerSettings(adapters=str(folder))),
        type(engine.adapters),
        [],
        threading.Event(),
    )
    real = kind.load

    def counted(self, name, path, pin=False):
        reads.append(name)
        if name == "broken":
            gate.wait(60)
        return real(self, name, path, pin=pin)

    async def ready(name: str) -> object:
        ADAPTER.set(name)
        try:
            return await served.ready()
        except RequestError as error:
            return error.code

    async def several() -> list[object]:
        waiting = [asyncio.create_task(ready("broken")) for _ in range(8)]
        found = [await asyncio.create_task(ready("law"))]
        gate.set()
        return found + [await task for task in waiting] + [await asyncio.create_task(ready("broken"))]

    monkeypatch.setattr(kind, "load", counted)
    assert asyncio.run(several()) == ["law", *["adapter_unusable"] * 9] and sorted(reads) == ["broken", "law"]
    weights = folder / "broken" / "adapter_model.safetensors"
    weights.write_bytes(b"no tensors either")
    assert asyncio.run(ready("broken")) == "adapter_unusable" and reads.count("broken") == 2
