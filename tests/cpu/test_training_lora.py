"""The adapter that ships: it is trained on words that its test does not have,
written as PEFT reads it, and does its task.
"""

import json
from itertools import islice
from pathlib import Path
from random import Random

import peft
import pytest
import torch
import transformers

import sgl
from sgl.runtime.nano import ADAPTERS
from sgl.runtime.nano.nano_prompts import extraction, json_text, schema_of
from training import listings, lora
from training.model import CausalAttention
from training.synthetic import UNSEEN_DOMAINS, Documents, load_catalogue
from training.values import Pools

NANO = Path(lora.__file__).parents[1] / "runtime" / "nano"


def test_pairs_are_written_as_peft_reads_them(tmp_path):
    torch.manual_seed(0)
    model = lora.load_nano(NANO)
    pairs = lora.add_pairs(model, 4, 12)
    for pair in pairs.values():
        torch.nn.init.normal_(pair.b, std=0.05)
        for tensor in (pair.a, pair.b):
            tensor.data = tensor.data.bfloat16().float()
    lora.save(pairs, tmp_path, 4, 12)
    base = transformers.AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)
    ids = torch.randint(0, 8192, (1, 40))
    with torch.inference_mode():
        plain = base(ids).logits
        adapted = peft.PeftModel.from_pretrained(base, tmp_path)(ids).logits
        ours = model(ids, CausalAttention.attend)
    assert (adapted - plain).abs().max() > 0.5
    torch.testing.assert_close(ours, adapted, atol=2e-3, rtol=1e-3)


def test_only_the_pairs_are_learnt():
    pairs = lora.add_pairs(model := lora.load_nano(NANO))
    learnt = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(pairs) == 8 * 7 and len(learnt) == 2 * len(pairs) and all(name.endswith((".a", ".b")) for name in learnt)
    assert [lora.rate_at(done) for done in (0, 1)] == [0, 0] and lora.rate_at(0.05) > 0.99


def test_sentences_of_the_test_are_not_those_of_the_training(monkeypatch):
    monkeypatch.setattr(listings, "load_pools", lambda data: Pools())
    taught = "\n".join(turn["content"] for talk in islice(listings.conversations(Path()), 400) for turn in talk)
    for domain in UNSEEN_DOMAINS:
        for concept in load_catalogue().domains[domain]:
            hidden = listings.kept_out(concept.sentences)
            assert 0 < len(hidden) < len(concept.sentences), concept.key
            seen = [
                part
                for part in (max(each.strip("+- ").split("{v}"), key=len) for each in hidden)
                if len(part) > 14 and part in taught
            ]
            assert not seen, concept.key
    for probe in listings.reworded(Pools(), 20):
        assert json.loads(probe.answer).keys() <= probe.schema["properties"].keys()
    assert "km on the clock" in taught


@sgl.function
def read(s, fields, text):
    task, document = extraction(fields, text)
    s += sgl.system(task["content"]) + sgl.user(document["content"])
    s += sgl.assistant(sgl.gen("answer", json_schema=schema_of(fields), max_tokens=200, temperature=0))


@pytest.mark.whole
def test_the_adapter_that_ships_does_its_task():
    composer = Documents(Random(123), Pools(), load_catalogue(), "domains")
    made = [composer.make() for _ in range(24)]
    items = [{"fields": each.fields, "text": each.document} for each in made]
    with sgl.Engine(adapters={"listings": ADAPTERS / "listings"}) as engine:
        info = engine.adapters.get("listings")
        assert info.rank == 8 and sum(path.stat().st_size for path in (ADAPTERS / "listings").iterdir()) < 2_000_000
        states = read.run_batch(items * 2, backend=engine, adapter=[None] * 24 + ["listings"] * 24)
    right = [
        json.loads(state["answer"]) == json.loads(json_text(each.answer))
        for state, each in zip(states, made * 2, strict=True)
    ]
    assert sum(right[24:]) >= sum(right[:24]) + 6, (sum(right[:24]), sum(right[24:]))


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_it_is_where_it_is_said_to_be(name):
    assert (ADAPTERS / "listings" / name).is_file()
