"""What adapters have beside pairs, by the runner of a GPU: its kernels interpreted, its graphs functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import write_checkpoint
from family_checks import reference
from test_adapters_extras import GEMMA, trained

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError

pretend = pytest.importorskip("gpu_runner").pretend
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, tests/gpu does the same")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dora": {"use_dora": True},
    "ends": {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
    "biases": {"lora_bias": True, "bias": "lora_only", "target_modules": ["q_proj", "up_proj"]},
    "tokens": {"trainable_token_indices": [31, 33], "target_modules": ["down_proj"]},
}
OWNERS = [None, "dora", "plain", "ends", "biases", "tokens", "plain", "dora", None]
ASKED = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)


def opened(base: Path, **options: Any) -> Engine:
    return Engine(
        base,
        device="cpu",
        dtype="float32",
        threads=1,
        kv_tokens=2048,
        max_running=10,
        step_tokens=32,
        **{"run_ahead": True, "adapter_slots": {8: 6}} | options,
    )


def texts(engine: Engine, owners: list[str | None]) -> list[list[int]]:
    sequences = [engine.open(adapter=owner) for owner in owners]
    for i, sequence in enumerate(sequences):
        sequence.extend(list(range(30 + i % 3, 39 + i % 4)))
    return [future.result(60).token_ids for future in [sequence.generate(ASKED) for sequence in sequences]]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, dict[str, Path]]:
    path = tmp_path_factory.mktemp("extras")
    base = write_checkpoint(path / "base", tokenizer=True, num_hidden_layers=2)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    for i, (name, keys) in enumerate(KINDS.items()):
        trained(model, path / name, seed=i, **keys)
    return base, {name: path / name for name in KINDS}


@pytest.mark.whole
def test_texts_are_those_of_the_cpu_and_plain_rows_keep_their_graphs(made, monkeypatch):
    base, folders = made
    with opened(base, adapters=folders) as engine:
        expected = texts(engine, OWNERS)
        plain = texts(engine, [None, "plain", "plain"])
    pretend(monkeypatch)
    with opened(base, adapters=folders) as engine:
        told = engine.info()["adapters"]
        assert (
            told["executor"] == "fused"
            and set(told["outside"]) == set(KINDS) - {"plain"}
            and told["outside"]["ends"] == "the embedding, the head"
        )
        assert texts(engine, OWNERS) == expected
        captured = dict(engine._core.runner._static)  # type: ignore[attr-defined]
        assert texts(engine, [None, "plain", "plain"]) == plain
        assert len(engine._core.runner._static) > len(captured)  # type: ignore[attr-defined]
        assert texts(engine, OWNERS[::-1][:4]) and texts(engine, OWNERS) == expected


def test_a_scaled_embedding(tmp_path, monkeypatch):
    architecture, keys = GEMMA
    model = reference(architecture, **keys, vocab_size=320)
    model.save_pretrained(tmp_path / "base")
    write_checkpoint(tmp_path / "words", tokenizer=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (tmp_path / "words" / name).is_file():
            (tmp_path / "base" / name).write_bytes((tmp_path / "words" / name).read_bytes())
    trained(model, tmp_path / "a", target_modules=["embed_tokens", "q_proj"])
    found = []
    for on_gpu in (False, True):
        if on_gpu:
            pretend(monkeypatch)
        with opened(tmp_path / "base", adapters={"a": tmp_path / "a"}) as engine:
            found.append(texts(engine, ["a", None]))
    assert found[0] == found[1] and found[0][0] != found[0][1]


@pytest.mark.whole
def test_whole_tables_lie_in_the_room_that_was_set_aside(made, tmp_path, monkeypatch):
    """For one adapter of three at a time; one that is larger than all of it is refused."""
    base, folders = made
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    saved: dict[str, Path] = {}
    for i, tables in enumerate((["lm_head", "embed_tokens"], ["lm_head"], ["embed_tokens"])):
        saved[f"saved{i}"] = tmp_path / str(i)
        trained(model, tmp_path / str(i), seed=i, modules_to_save=tables, target_modules=["q_proj"])
    owners = ["saved0", None, "saved1", "plain", "saved2", "dora", "saved0"]
    chosen: dict[str, Any] = {"adapters": saved | {name: folders[name] for name in ("plain", "dora")}}
    with opened(base, **chosen) as engine:
        expected = texts(engine, owners)
    pretend(monkeypatch)
    size = 4 * 320 * 64  # of a table
    with opened(base, **chosen, adapter_extras=2 * size + 20_000) as engine:
        assert {"the embedding", "the head"} == {*engine.info()["adapters"]["outside"]["saved0"].split(", ")}
        assert engine.info()["adapters"]["slot_bytes"] > 2 * size
        assert texts(engine, owners) == texts(engine, owners) == expected
        told = engine.stats().adapters
        assert (
            told["slot_evictions"] > 2
            and told["slots_held"] == 0
            and {told["by_name"][name]["where"] for name in saved} > {"host"}
        )
    with (
        opened(base, adapter_extras=size) as engine,
        pytest.raises(ConfigError, match=r"163,840 bytes besides .* \(the embedding, the head\).*adapter_extras"),
    ):
        engine.adapters.load("saved", saved["saved0"])


def test_what_a_gpu_does_not_take_is_refused_by_name(made, monkeypatch):
    base, folders = made
    pretend(monkeypatch)
    with (
        opened(base, strict=True) as engine,
        pytest.raises(ConfigError, match=r"'dora' changes DoRA, so its steps run outside of CUDA graphs"),
    ):
        engine.adapters.load("dora", folders["dora"])
    with (
        opened(base, deterministic=True) as engine,
        pytest.raises(ConfigError, match="use_dora=True is not supported here"),
    ):
        engine.adapters.load("dora", folders["dora"])
