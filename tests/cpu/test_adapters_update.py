"""`engine.adapters.update`: an adapter that is trained beside the engine, from its tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers
from peft import PeftModel, get_peft_model_state_dict
from peft_adapters import make_adapter

from sgl.runtime import Engine
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.sampling.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
PROMPT = list(range(40, 90))


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory) -> list[tuple[PeftModel, Path]]:
    """Three states of one training, each as PEFT has it in memory and on disk."""
    path = tmp_path_factory.mktemp("trained")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    return [(make_adapter(model, path / str(i), seed=i), path / str(i)) for i in range(3)]


def text_of(engine: Engine, adapter: str) -> list[int]:
    sequence = engine.open(adapter=adapter)
    sequence.extend(PROMPT)
    return sequence.generate(GREEDY).result().token_ids


def config_of(model: PeftModel) -> dict:
    return model.peft_config["default"].to_dict()


def test_tensors_are_what_the_files_are(open_engine, trained):
    engine = open_engine(adapters={str(i): path for i, (_, path) in enumerate(trained)})
    expected = [text_of(engine, str(i)) for i in range(3)]
    digests = [engine.adapters.get(str(i)).digest for i in range(3)]
    assert len({tuple(tokens) for tokens in expected}) == 3
    for i, (model, _) in enumerate(trained):
        for tensors in (model.state_dict(), get_peft_model_state_dict(model), dict(model.named_parameters())):
            assert engine.adapters.update("now", tensors, config_of(model)).digest == digests[i]
        assert text_of(engine, "now") == expected[i]


def test_open_sequences_keep_theirs_and_pins_stay(open_engine, trained):
    (first, path), (second, _), _ = trained
    engine = open_engine(adapters={"a": path})
    before = text_of(engine, "a")
    sequence = engine.open(adapter="a")
    sequence.extend(PROMPT)
    engine.adapters.pin("a")
    assert engine.adapters.update("a", second.state_dict()).pinned  # the configuration is that of before
    assert text_of(engine, "a") != before
    assert sequence.generate(GREEDY).result().token_ids == before
    assert engine.adapters.update("a", first.state_dict()).uses == 1


def test_what_cannot_be_used_leaves_the_adapter_as_it_was(open_engine, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (model, path), *_ = trained
    engine = open_engine(adapters={"a": path})
    digest, tensors = engine.adapters.get("a").digest, get_peft_model_state_dict(model)
    name = next(iter(tensors))
    for wrong, said in (
        (tensors | {name: tensors[name][:, :-1]}, "has shape"),
        ({key: value for key, value in tensors.items() if key != name}, "other half"),
        (tensors | {name: torch.full_like(tensors[name], torch.nan)}, "nan"),
        (tensors | {name.replace(".weight", ".other.weight"): tensors[name]}, "several"),
        ({"model.norm.weight": torch.ones(4)}, "none of the 1 tensors"),
    ):
        with pytest.raises(CheckpointError, match=said):
            engine.adapters.update("a", wrong)
        assert engine.adapters.get("a").digest == digest and not list(tmp_path.glob("sgl-adapter-*"))
    with pytest.raises(ConfigError, match="give config="):
        engine.adapters.update("b", tensors)
    for key, value in {
        "use_dora": True,
        "modules_to_save": ["lm_head"],
        "trainable_token_indices": [3],
        "lora_bias": True,
    }.items():
        with pytest.raises(CheckpointError, match=key):
            engine.adapters.update("a", tensors, config_of(model) | {key: value})


@pytest.mark.parametrize(
    "keys",
    [
        {"use_dora": True},
        {"modules_to_save": ["lm_head"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"trainable_token_indices": [40, 41]},
    ],
)
def test_what_lies_beside_the_pairs_comes_as_tensors_too(open_engine, tiny, tmp_path, keys):
    model = make_adapter(transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32), tmp_path, **keys)
    engine = open_engine(adapters={"a": tmp_path})
    for tensors in (model.state_dict(), get_peft_model_state_dict(model)):
        assert engine.adapters.update("now", tensors, config_of(model)).digest == engine.adapters.get("a").digest
    assert text_of(engine, "now") == text_of(engine, "a")


def test_a_training_of_many_steps_leaves_no_files(open_engine, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model, path = trained[0]
    with open_engine(adapters={"a": path}) as engine:
        for _ in range(5):
            engine.adapters.update("a", model.state_dict())
        assert len(list(tmp_path.glob("sgl-adapter-*"))) == 2
        engine.adapters.update("b", model.state_dict(), config_of(model))
        engine.adapters.unload("b")
        assert len(list(tmp_path.glob("sgl-adapter-*"))) == 2
    assert not list(tmp_path.glob("sgl-adapter-*"))


@pytest.mark.whole
def test_in_a_process_of_its_own(tiny, trained):
    (_, path), (model, other), _ = trained
    with Engine(
        tiny, dtype="float32", threads=1, kv_tokens=2048, adapters={"a": path, "other": other}, process=True
    ) as engine:
        assert text_of(engine, "a") != text_of(engine, "other")
        assert engine.adapters.update("a", model.state_dict()).digest == engine.adapters.get("other").digest
        assert text_of(engine, "a") == text_of(engine, "other")


def test_two_names_of_the_same_tensors_do_not_need_each_other(open_engine, trained):
    (model, path), (second, _), _ = trained
    expected = text_of(open_engine(adapters={"x": path}), "x")
    engine = open_engine(adapters={}, adapter_slots=1)
    for name in ("a", "b"):
        engine.adapters.update(name, model.state_dict(), config_of(model))
    engine.adapters.unload("b")
    engine._core.adapters.slots.evict_all()
    for kept in engine._core.adapters.store:
        kept.adapter = None  # as after a time without use
    assert text_of(engine, "a") == expected
    assert (
        engine.adapters.update("a", second.state_dict()).digest
        != engine.adapters.update("c", model.state_dict(), config_of(model)).digest
    )


def test_updates_of_one_name_at_once(open_engine, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = open_engine(adapters={"a": trained[0][1]})
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda i: engine.adapters.update("a", trained[i % 3][0].state_dict()), range(24)))
    assert Path(engine.adapters.get("a").path).is_dir() and len(list(tmp_path.glob("sgl-adapter-*"))) == 2
    assert text_of(engine, "a")
