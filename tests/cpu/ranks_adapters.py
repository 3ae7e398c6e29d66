"""Adapters of the tiny model, and what engines of several ranks are asked to do with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft_adapters import make_adapter
from safetensors.torch import load_file, save_file

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import CheckpointError, ConfigError

OPTIONS: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_tokens": 2048, "max_running": 8}
GREEDY = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
PROMPT = list(range(40, 52))
KINDS: dict[str, dict[str, Any]] = {
    "dora": {"use_dora": True},
    "biases": {"lora_bias": True, "target_modules": ["q_proj", "o_proj", "down_proj"]},
    "ends": {"target_modules": ["embed_tokens", "lm_head", "v_proj"]},
    "tokens": {"trainable_token_indices": [40, 45, 310], "target_modules": ["down_proj"]},
    "wide at the end": {
        "target_modules": ["q_proj", "o_proj"],
        "rank_pattern": {"layers.2.self_attn.o_proj": 12},
        "lora_bias": True,
    },
    "first layer alone": {"layers_to_transform": [0], "target_modules": ["k_proj", "down_proj"], "use_dora": True},
    "tables": {"modules_to_save": ["lm_head", "embed_tokens"], "target_modules": ["q_proj"], "use_dora": True},
}


def write_adapters(tiny: Path, place: Path, count: int) -> list[Path]:
    """All but the first, which PEFT wrote, have its tensors with other numbers; of every
    third one those of the last layer alone are others.
    """
    make_adapter(transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32), place / "0", r=4)
    first, generator = load_file(place / "0" / "adapter_model.safetensors"), torch.Generator().manual_seed(1)
    for number in range(1, count):
        shutil.copytree(place / "0", place / str(number))
        kept = "layers.2." if number % 3 == 0 else ""
        made = {
            name: torch.randn(tensor.shape, generator=generator) * 0.2 if kept in name else tensor
            for name, tensor in first.items()
        }
        save_file(made, place / str(number) / "adapter_model.safetensors")
    return [place / str(number) for number in range(count)]


def write_kinds(tiny: Path, place: Path) -> dict[str, Path]:
    """Of adapters that have more than pairs, one of each kind, as PEFT writes them."""
    from test_adapters_extras import trained

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    for seed, (name, keys) in enumerate(KINDS.items()):
        trained(model, place / name, seed=seed, r=4, **keys)
    return {name: place / name for name in KINDS}


def with_kinds(one: Engine, several: Engine, folders: dict[str, Path]) -> None:
    """Alone, and beside each other and plain rows: the texts are those of one rank."""
    for engine in (one, several):
        for name, folder in folders.items():
            engine.adapters.load(name, folder)
    told = [
        {info.name: info.outside for info in engine.adapters.list() if info.name in folders}
        for engine in (one, several)
    ]
    assert told[0] == told[1] and all(told[0].values())
    names = [None, *folders]
    expected = texts(one, names, together=False)
    assert len({tuple(each) for each in expected}) > len(folders) // 2
    for together in (True, False):
        assert texts(several, names, together) == expected


def with_other_weights(one: Engine, several: Engine, before: Path, other: Path, folders: dict[str, Path]) -> None:
    """Adapters that are laid out with the base's weights are those of the new ones, wherever they
    lie, and so are the texts of sequences that are open.
    """
    names = [name for name in folders if name not in ("ends", "tables")]
    for engine in (one, several):
        for name in names:
            engine.adapters.load(name, folders[name])
    expected = texts(one, names, together=False)
    with Engine(other, **OPTIONS, adapters={name: folders[name] for name in names}) as fresh:
        wanted = texts(fresh, names, together=False)
    assert wanted != expected
    for engine in (one, several):
        engine.update_weights(other)
        assert texts(engine, names, together=True) == wanted
    for engine in (one, several):
        engine.update_weights(before)
        assert texts(engine, names, together=False) == expected


def texts(engine: Engine, names: list[str | None], together: bool) -> list[list[int]]:
    engine.flush_cache()
    sequences, found = [], []
    for name in names:
        sequence = engine.open(adapter=name)
        sequence.extend(PROMPT)
        sequences.append(sequence)
        found.append(sequence.generate(GREEDY))
        if not together:
            found[-1].result(60)
    return [future.result(60).token_ids for future in found]


def with_adapters(one: Engine, several: Engine, folders: list[Path]) -> None:
    """Loaded, mixed, put out of their slots, loaded anew under names in use, and
    unloaded: the texts are those of one rank.
    """
    names: list[str | None] = [f"a{number}" for number in range(len(folders))]
    for name, folder in zip(names, folders, strict=True):
        one.adapters.load(name, folder)
        assert several.adapters.load(name, folder, pin=name == "a0").pinned == (name == "a0")
    assert len({info.digest for info in several.adapters.list()}) == len(folders)
    expected = texts(one, [None, *names], together=False)
    assert len({tuple(each) for each in expected}) > len(folders) // 2
    assert texts(several, [None, *names], together=True) == expected
    assert texts(several, [None, *names][:3], together=False) == expected[:3]
    stats = several.stats().adapters
    assert stats["slot_evictions"] > 0 and stats["slots_held"] == 0 and stats["by_name"]["a1"]["opened"] >= 2
    open_ = several.open(adapter="a1")
    open_.extend(PROMPT)
    several.adapters.load("a1", folders[2])
    assert (
        texts(several, ["a1"], together=False) == [expected[3]]
        and open_.generate(GREEDY).result(60).token_ids == expected[2]
    )
    open_.close()
    for engine in (one, several):
        for name in names[1:]:
            engine.adapters.unload(name)
    assert several.sleep() > 0
    several.wake()
    assert texts(several, [None, "a0"], together=True) == expected[:2]


def refuses_bad_adapters(engine: Engine, folder: Path, place: Path) -> None:
    """By name, and those that are there go on."""
    before = texts(engine, ["a0"], together=False)
    shapes = {
        "rank": ("model.layers.2.mlp.down_proj", lambda pair: (pair[0][:, :8], pair[1])),
        "lm_head": ("lm_head", lambda pair: pair),
    }
    for kind, (module, change) in shapes.items():
        shutil.copytree(folder, place / kind)
        tensors = load_file(place / kind / "adapter_model.safetensors")
        name = f"base_model.model.{module}"
        pair = [tensors.get(f"{name}.lora_{half}.weight", torch.zeros(4, 4)) for half in "AB"]
        tensors |= {
            f"{name}.lora_{half}.weight": each.contiguous() for half, each in zip("AB", change(pair), strict=True)
        }
        save_file(tensors, place / kind / "adapter_model.safetensors")
        with pytest.raises(CheckpointError, match=module.replace(".", r"\.")):
            engine.adapters.load("a0", place / kind)
    config = json.loads((folder / "adapter_config.json").read_text())
    shutil.copytree(folder, place / "dora")
    (place / "dora" / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(CheckpointError, match="use_dora"):
        engine.adapters.load("a0", place / "dora")
    with pytest.raises(ConfigError, match="no adapter 'b'"):
        engine.open(adapter="b")
    assert texts(engine, ["a0"], together=False) == before
