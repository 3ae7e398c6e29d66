"""Bad input gets a clear error that names the value and the next action, and only its request fails."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import sgl
from sgl import grammars
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import (
    CheckpointError,
    ConfigError,
    ContextLengthError,
    EngineClosed,
    OutOfPages,
    RuntimeFailure,
    TruncatedError,
)

ONE = SamplingParams(max_tokens=1, temperature=0)


def works(engine: Engine) -> bool:
    engine.check()
    return engine.generate("still here", ONE).completion_tokens == 1


def fails(engine: Engine, tokens, params=ONE):
    sequence = engine.open()
    sequence.extend(tokens)
    return sequence.generate(params).exception(30)


def test_unknown_engine_option_names_the_nearest(tiny):
    with pytest.raises(ConfigError, match="no option 'page_sise'; did you mean 'page_size'"):
        Engine(tiny, page_sise=4)
    with pytest.raises(ConfigError, match="page_size=0"):
        Engine(tiny, page_size=0)
    with pytest.raises(ConfigError, match=r"kv_memory='much'.*'2GB'"):
        Engine(tiny, kv_memory="much")
    with pytest.raises(ConfigError, match="no attention backend is called 'torch_nativ'; did you mean 'torch_native'"):
        Engine(tiny, attention="torch_nativ")
    with pytest.raises(ConfigError, match="context=100000 is beyond the 512 positions"):
        Engine(tiny, context=100000)
    with pytest.raises(ConfigError, match=r"json_options=.*whitespace='space' is not one of .*did you mean 'spaced'"):
        Engine(tiny, json_options={"whitespace": "space"})


def test_unknown_sampling_option_names_the_nearest(engine):
    with pytest.raises(ConfigError, match="no sampling option 'temprature'; did you mean 'temperature'"):
        engine.generate("x", temprature=0.5)
    with pytest.raises(ConfigError, match=r"top_p must be in \(0, 1\], got 1.5"):
        engine.generate("x", top_p=1.5)
    assert works(engine)


def test_missing_model(tmp_path):
    with pytest.raises(CheckpointError, match=r"no directory .*nowhere"):
        Engine(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Engine(_empty(tmp_path))


def _empty(path):
    (path / "model").mkdir()
    return path / "model"


def test_wrong_tensor_shape_is_named(tiny, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(63)
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"'model.norm.weight' has shape \[63\], config.json asks for \[64\]"):
        Engine(broken)


def test_unknown_architecture_says_where_the_known_are_listed(tiny, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    config = json.loads((other / "config.json").read_text()) | {"architectures": ["RwkvForCausalLM"]}
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"RwkvForCausalLM.*`sgl models` lists"):
        Engine(other)


def test_prompt_too_long_and_empty_prompt(engine):
    error = fails(engine, np.full(600, 5))
    assert isinstance(error, ContextLengthError) and "600 tokens" in str(error) and "512" in str(error)
    assert isinstance(fails(engine, np.full(512, 5)), ContextLengthError)
    error = fails(engine, [])
    assert isinstance(error, ConfigError) and "empty sequence" in str(error)
    assert works(engine)


def test_a_generation_stops_at_the_end_of_the_context(engine):
    sequence = engine.open()
    sequence.extend(np.full(500, 5))
    done = sequence.generate(SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)).result(60)
    assert done.completion_tokens == 12 and done.finish_reason == {"type": "length", "length": 12}


def test_token_ids_outside_the_vocabulary(engine):
    assert "0..319" in str(fails(engine, [5, 320]))
    assert "0..319" in str(fails(engine, [-1]))
    assert works(engine)


def test_a_prompt_larger_than_the_pool(open_engine):
    engine = open_engine(kv_tokens=64)
    error = fails(engine, np.full(100, 5))
    assert isinstance(error, OutOfPages) and "64" in str(error) and "kv_tokens" in str(error)
    assert works(engine)


def test_invalid_grammars_name_keyword_and_place(engine):
    with pytest.raises(grammars.UnsupportedGrammarError, match="look"):
        grammars.compile_regex("a(?=b)", engine.vocabulary)
    with pytest.raises(grammars.InvalidGrammarError):
        grammars.compile_regex("a(b", engine.vocabulary)
    with pytest.raises(grammars.InvalidGrammarError, match="properties"):
        grammars.compile_json_schema({"type": "object", "properties": {"a": {"type": "strin"}}}, engine.vocabulary)


def test_a_grammar_for_another_vocabulary(engine):
    other = grammars.Vocabulary.from_bytes([b"a", b"b"], [1])
    with pytest.raises(ConfigError, match=r"engine\.vocabulary"):
        engine.generate("x", grammar=grammars.compile_regex("a", other))
    assert works(engine)


def test_a_failing_sampler_fails_its_requests_only(engine):
    sampler = engine._core.stepper.sampler
    launch, sampler.launch = sampler.launch, lambda *a: 1 / 0
    with pytest.raises(RuntimeFailure, match="sampling failed: ZeroDivisionError"):
        engine.generate("x")
    sampler.launch = launch
    assert works(engine)


def test_a_bad_schema_fails_its_program_only(engine):
    @sgl.function
    def ask(s, schema):
        s += "Data: " + sgl.gen("x", json_schema=schema, max_tokens=60)

    good = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    results = ask.run_batch(
        [{"schema": good}, {"schema": {"type": "nonsense"}}, {"schema": good}], backend=engine, return_exceptions=True
    )
    assert json.loads(results[0]["x"])["a"] in (1, 2) and json.loads(results[2]["x"])["a"] in (1, 2)
    assert isinstance(results[1], Exception) and "nonsense" in f"{results[1]} {results[1].__cause__}"
    assert works(engine)


def test_a_text_cut_by_the_limit_says_so(engine):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "minLength": 30}},
        "required": ["a"],
        "additionalProperties": False,
    }
    grammar = grammars.compile_json_schema(schema, engine.vocabulary)
    cut = engine.generate("x", grammar=grammar, max_tokens=12, seed=1)
    assert cut.truncated and cut.finish_reason["type"] == "length"
    closed = engine.generate("x", grammar=grammar, max_tokens=12, seed=1, close_at_limit=True)
    assert closed.truncated and closed.closed and not cut.closed and len(json.loads(closed.text)["a"]) >= 30
    with pytest.raises(TruncatedError, match="max_tokens=12"):
        engine.generate("x", grammar=grammar, max_tokens=12, seed=1, error_on_truncation=True)
    assert works(engine)


def test_a_text_that_would_take_for_ever_to_close_stays_cut(engine):
    grammar = grammars.compile_json_schema({"type": "string", "minLength": 10**9}, engine.vocabulary)
    cut = engine.generate("x", grammar=grammar, max_tokens=8, seed=1, close_at_limit=True)
    assert cut.truncated and cut.finish_reason["type"] == "length" and cut.completion_tokens == 8
    assert works(engine)


def test_a_closed_engine(open_engine):
    engine = open_engine()
    sequence = engine.open()
    engine.close()
    engine.close()
    with pytest.raises(EngineClosed, match="open a new one"):
        engine.generate("x")
    with pytest.raises(EngineClosed):
        sequence.generate().result(1)
    with pytest.raises(EngineClosed):
        engine.stats()
