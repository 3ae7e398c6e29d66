"""/v1/embeddings with OpenAI's own client, and the native /encode, against the engine's own vectors."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
from server_rig import serving

import sgl

TEXTS = ["I want to book a table.", "Play some jazz", "é🙂"]
MODEL = "nano"


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine(threads=1, dtype="float32") as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine):
    with serving(engine, served_name=MODEL, max_prompt_tokens=500) as found:
        yield found


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def http(url):
    with httpx.Client(base_url=url, timeout=60) as opened:
        yield opened


def close(found, wanted) -> bool:
    return np.allclose(np.asarray(found, np.float32), wanted, atol=1e-4)


def refused(http, **body) -> dict:
    answer = http.post("/v1/embeddings", json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_the_client_gets_the_engines_vectors(client, engine):
    """It asks for base64 unless told otherwise."""
    found = client.embeddings.create(model=MODEL, input=TEXTS)
    assert close([item.embedding for item in found.data], engine.embed(TEXTS))
    assert [item.index for item in found.data] == [0, 1, 2] and found.model == MODEL
    tokens = sum(len(engine.tokenizer.encode(text, special_prefix=True)) for text in TEXTS)
    assert found.usage.prompt_tokens == found.usage.total_tokens == tokens


@pytest.mark.parametrize("form", ["float", "base64"])
def test_every_form_of_the_input(http, engine, form):
    ids = [engine.tokenizer.encode(text, special_prefix=True).tolist() for text in TEXTS]
    wanted = engine.embed(TEXTS)
    for given, rows in (
        (TEXTS[0], [0]),
        (TEXTS, [0, 1, 2]),
        (ids[1], [1]),
        (ids, [0, 1, 2]),
        ([TEXTS[0], ids[2]], [0, 2]),
    ):
        answer = http.post("/v1/embeddings", json={"input": given, "encoding_format": form})
        assert answer.status_code == 200, answer.text
        data = [item["embedding"] for item in answer.json()["data"]]
        found = data if form == "float" else [np.frombuffer(base64.b64decode(text), "<f4") for text in data]
        assert close(found, wanted[rows])


def test_length_one_and_the_size_there_is(client, engine):
    size = engine.info()["hidden_size"]
    found = client.embeddings.create(model=MODEL, input=TEXTS, dimensions=size, extra_body={"normalize": True})
    assert close([item.embedding for item in found.data], engine.embed(TEXTS, normalize=True))


def test_what_is_refused(http, client):
    assert "cannot be shortened" in refused(http, input="x", dimensions=5)["message"]
    assert refused(http, input="x", dimensions=5)["param"] == "dimensions"
    assert refused(http, input=[])["param"] == "input"
    assert refused(http, input=["x"] * 2049)["param"] == "input"
    assert "token ids" in refused(http, input=[[10**6]])["message"]
    assert refused(http, input="x " * 3000)["code"] == "context_length_exceeded"
    assert "did you mean 'encoding_format'" in refused(http, input="x", encoding_fromat="float")["message"]
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="x")


def test_one_bad_input_costs_no_computation(http, engine):
    before = engine.stats()
    refused(http, input=["a text", [10**6]])
    assert (engine.stats() - before).computed_tokens == 0


@pytest.mark.whole
def test_many_inputs_leave_room_for_others(http, engine):
    texts = [f"text number {i}" for i in range(300)]
    with ThreadPoolExecutor(1) as pool:
        many = pool.submit(http.post, "/v1/embeddings", json={"input": texts})
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
        data = many.result().json()["data"]
    assert close([item["embedding"] for item in data[:5]], engine.embed(texts[:5])) and len(data) == 300


def test_the_native_route(http, engine):
    one, two = (
        http.post("/encode", json={"text": TEXTS[0]}).json(),
        http.post("/encode", json={"text": TEXTS[:2]}).json(),
    )
    wanted = engine.embed(TEXTS)
    assert close(one["embedding"], wanted[0])
    assert close([answer["embedding"] for answer in two], wanted[:2])
    assert one["meta_info"]["prompt_tokens"] == len(engine.tokenizer.encode(TEXTS[0], special_prefix=True))
    for body in ({}, {"text": "x", "input_ids": [1]}, {"text": []}, {"txt": "x"}):
        answer = http.post("/encode", json=body)
        assert answer.status_code == 400 and answer.json()["error"].keys() == {"message"}


def test_they_are_in_the_document(http):
    document = http.get("/openapi.json").json()
    assert {"/v1/embeddings", "/encode", "/abort_request"} <= document["paths"].keys()
    answer = document["paths"]["/v1/embeddings"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer == {"$ref": "#/components/schemas/Embeddings"}
