"""The engine's options are shown by name."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re

import pytest

import sgl
from sgl.runtime.build.engine_config import EngineArguments, EngineConfig
from sgl.runtime.build.engine_options import options_of
from sgl.runtime.errors import ConfigError

FIELDS = dataclasses.fields(EngineConfig)


def test_the_docstring_has_a_row_for_each_option_in_their_order():
    rows = re.findall(r"^    (\w+)  +\S", EngineConfig.__doc__, re.MULTILINE)
    assert rows == [field.name for field in FIELDS]


def test_each_default_is_valid():
    EngineConfig().validate()


def test_help_shows_each_option_with_its_default():
    shown = inspect.signature(sgl.Engine).parameters
    assert list(shown) == ["model", *(field.name for field in FIELDS)]
    assert all(shown[field.name].default == field.default for field in FIELDS)
    assert "kv_memory: 'int | str | None' = None" in pydoc.render_doc(sgl.Engine, renderer=pydoc.plaintext)


@pytest.mark.parametrize(
    ("option", "value"),
    [("page_size", None), ("threads", 100_000), ("attention", 3), ("json_options", "any"), ("json_options", {1: 2})],
)
def test_a_value_that_cannot_be_is_told_with_its_option(option, value):
    with pytest.raises(ConfigError, match=rf"Engine\({option}="):
        EngineConfig.from_options({option: value})


OTHERS = {
    "tp_size": "tensor_parallel=",
    "tensor_parallel_size": "tensor_parallel=",
    "pipeline_parallel_size": "pipeline_parallel=",
    "dp_size": "replicas=",
    "quantization": "weights=",
    "max_model_len": "context=",
    "context_length": "context=",
    "model_path": "model=",
    "mem_fraction_static": "memory=",
    "gpu_memory_utilization": "memory=",
    "max_num_seqs": "max_running=",
    "max_running_requests": "max_running=",
    "kv_cache_dtype": "kv_dtype=",
    "enable_lora": "adapters=",
    "lora_paths": "adapters=",
    "served_model_name": "--served-name",
    "torch_dtype": "dtype=",
    "enforce_eager": "graphs=False",
    "disable_cuda_graph": "graphs=False",
    "random_seed": "seed=",
    "tokenizer_path": "tokenizer=",
    "tokenizer_mode": "leave it out",
    "attention_backend": "attention=",
    "revision": "name@revision",
    "max_tokens": "program.run",
    "contxt": "did you mean 'context'",
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_option_of_other_engines_is_answered_with_ours(name):
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_options({name: 1})
    assert f"Engine has no option {name!r}; " in str(caught.value) and OTHERS[name] in str(caught.value)


def test_what_is_answered_is_an_option_of_ours():
    from sgl.runtime.build.option_aliases import SENTENCES, VALUES

    ours = {field.name for field in FIELDS}
    others = [other for _, _, row in options_of(EngineArguments) for other in row.also]
    assert set(VALUES) <= ours and len(others) == len(set(others))
    assert not ours & {*others, *SENTENCES} and not SENTENCES.keys() & set(others)
    for sentence in SENTENCES.values():
        assert set(re.findall(r"(?:give|and|with) (\w+)=", sentence)) <= ours, sentence


@pytest.mark.parametrize(
    ("option", "value", "match"),
    [
        ("dtype", "half", "give dtype='float16'"),
        ("dtype", "bf16", "'bfloat16'"),
        ("load_format", "dummy", "dummy=True"),
        ("kv_dtype", "fp8_e5m2", "'fp8'"),
        ("load_format", "safetensors", "leave it out"),
    ],
)
def test_a_value_of_other_engines_is_answered_with_ours(option, value, match):
    with pytest.raises(ConfigError, match=match):
        EngineConfig.from_options({option: value})


def test_dtypes_of_torch_are_taken():
    torch = pytest.importorskip("torch")
    assert EngineConfig.from_options({"dtype": torch.bfloat16}).dtype == "bfloat16"
    with pytest.raises(ConfigError, match="float64"):
        EngineConfig.from_options({"dtype": torch.float64})


def test_the_bundled_model_has_a_name(tmp_path, monkeypatch):
    from sgl.runtime.engine import NANO
    from sgl.runtime.loading import resolve_model

    assert resolve_model("nano") == resolve_model("sgl-nano") == NANO
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nano").mkdir()
    assert str(resolve_model("nano")) == "nano"  # a directory here comes first
