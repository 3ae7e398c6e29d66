"""Other weights for an engine that runs: texts are those of an engine that began with them, and nobody fails."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from checkpoints import edit_json, write_checkpoint
from safetensors.torch import load_file, save_file

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.calibration.tensors_on_disk import TensorsOnDisk
from sgl.runtime.errors import CheckpointError, ConfigError, RuntimeFailure
from sgl.runtime.loading.tensor_files.tensor_source import FileWeightSource

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("weights")
    return [write_checkpoint(place / str(seed), seed=seed, tokenizer=True) for seed in (0, 1)]


def opened(path: Path, **options: object) -> Engine:
    return Engine(path, **{"device": "cpu", "dtype": "float32", "kv_tokens": 2048} | options)


def ids(engine: Engine) -> list[int]:
    return list(engine.generate(PROMPT, GREEDY).token_ids)


@pytest.fixture(scope="module")
def expected(folders: list[Path]) -> list[list[int]]:
    found = []
    for path in folders:
        with opened(path) as engine:
            found.append(ids(engine))
    assert found[0] != found[1]
    return found


@pytest.fixture
def engine(folders: list[Path]) -> Iterator[Engine]:
    with opened(folders[0]) as engine:
        yield engine


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weights": "int8"},
        {"page_size": 16, "host_kv": "10MB"},
        {"attention": "torch_native"},
        {"dtype": "bfloat16"},
    ],
)
def test_texts_are_those_of_the_new_weights_and_prefixes_are_forgotten(
    folders: list[Path], options: dict[str, object]
) -> None:
    with opened(folders[1], **options) as other:
        wanted = ids(other)
    with opened(folders[0], **options) as engine:
        before = ids(engine)
        assert engine.update_weights(folders[1]) == sum(
            tensor.nbytes for tensor in load_file(folders[1] / "model.safetensors").values()
        )
        cached = engine.stats().cached_tokens
        assert ids(engine) == wanted and engine.stats().cached_tokens == cached
        assert engine.info()["model_path"] == str(folders[1])
        engine.update_weights(str(folders[0]))
        assert ids(engine) == before


def test_tensors_of_a_training_loop(engine: Engine, folders: list[Path], expected: list[list[int]]) -> None:
    tensors = load_file(folders[1] / "model.safetensors")
    tensors = {
        name: tensor.double() if index % 2 else tensor.t().contiguous().t() if tensor.dim() == 2 else tensor
        for index, (name, tensor) in enumerate(tensors.items())
    }
    engine.update_weights(tensors)
    assert ids(engine) == expected[1]
    engine.update_weights(folders[0])
    assert ids(engine) == expected[0]


def test_pairs_of_names_and_tensors_that_come_one_by_one(
    engine: Engine, folders: list[Path], expected: list[list[int]]
) -> None:
    engine.update_weights(iter(load_file(folders[1] / "model.safetensors").items()))
    assert ids(engine) == expected[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "not 3"),
        ([("one", torch.zeros(2)), ("one", torch.zeros(2))], "'one' twice"),
        ([torch.zeros(2)], "pairs of name and tensor"),
        (None, "not None"),
    ],
)
def test_what_is_no_weights_changes_nothing(
    engine: Engine, expected: list[list[int]], given: object, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        engine.update_weights(given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"a model is named by a directory, .* not by dict"):
        Engine({})  # type: ignore[arg-type]
    assert ids(engine) == expected[0]


def test_what_runs_goes_on_with_its_text_under_the_new_weights(folders: list[Path]) -> None:
    """Each text is the old model's up to some token, and what the new model says of that from there on."""
    prompts, long = ["one", "two and", "three"], SamplingParams(max_tokens=120, temperature=0, ignore_eos=True)
    with opened(folders[0]) as engine, opened(folders[1]) as new:
        old = [list(done.token_ids) for done in engine.generate(prompts, long)]
        begun, texts = threading.Event(), [None] * len(prompts)

        def generate(index: int) -> None:
            texts[index] = list(engine.generate(prompts[index], long, on_chunk=lambda chunk: begun.set()).token_ids)

        threads = [threading.Thread(target=generate, args=(index,)) for index in range(len(prompts))]
        [thread.start() for thread in threads]
        begun.wait(60)
        engine.update_weights(folders[1])
        [thread.join(60) for thread in threads]
        split = 0
        for prompt, before, text in zip(prompts, old, texts, strict=True):
            assert text is not None and len(text) == 120
            same = next((index for index in range(120) if before[index] != text[index]), 120)
            assert any(
                text == before[:kept] + continued(new, prompt, before[:kept], 120 - kept) for kept in range(same + 1)
            )
            split += same < 120
        assert split, "the update came after all texts"


def continued(engine: Engine, prompt: str, tokens: list[int], count: int) -> list[int]:
    if not count:
        return []
    sequence = engine.open()
    sequence.extend([*engine.tokenizer.encode(prompt), *tokens])
    found = list(sequence.generate(SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)).result().token_ids)
    sequence.close()
    return found


def test_another_model_is_refused_and_nothing_changes(
    engine: Engine, expected: list[list[int]], folders: list[Path], tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", intermediate_size=128, tokenizer=True)
    with pytest.raises(CheckpointError, match="is another model than the engine's: it differs in layers"):
        engine.update_weights(other)
    tensors = load_file(folders[1] / "model.safetensors")
    name, weight = next(iter(tensors.items()))
    with pytest.raises(CheckpointError, match="lacks 1 of 30 tensors"):
        engine.update_weights({other: tensor for other, tensor in tensors.items() if other != name})
    with pytest.raises(CheckpointError, match="has shape"):
        engine.update_weights(tensors | {name: weight[1:]})
    with pytest.raises(CheckpointError, match=r"update_weights: .* is str, not a tensor"):
        engine.update_weights(tensors | {name: "no tensor"})
    assert ids(engine) == expected[0]


def test_a_read_that_breaks_off_brings_the_old_weights_back(
    engine: Engine, expected: list[list[int]], folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FileWeightSource.read

    def failing(self: FileWeightSource, stored: object, offset: int, part: torch.Tensor) -> None:
        if str(self.file).startswith(str(folders[1])) and ".layers.1." in stored.name:
            raise OSError("the disk is gone")
        read(self, stored, offset, part)

    monkeypatch.setattr(FileWeightSource, "read", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        engine.update_weights(folders[1])
    assert ids(engine) == expected[0]


def test_an_engine_without_whole_weights_waits_for_an_update(
    engine: Engine, expected: list[list[int]], folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FileWeightSource.read

    def failing(self: FileWeightSource, stored: object, offset: int, part: torch.Tensor) -> None:
        if ".layers.1." in stored.name:
            raise OSError("the disk is gone")
        read(self, stored, offset, part)

    with monkeypatch.context() as patch:
        patch.setattr(FileWeightSource, "read", failing)
        with pytest.raises(RuntimeFailure, match="computes nothing until update_weights succeeds"):
            engine.update_weights(folders[1])
    waiting: list[list[int]] = []
    thread = threading.Thread(target=lambda: waiting.append(ids(engine)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    with pytest.raises(RuntimeFailure, match=r"sleep\(\): an update of the weights broke off"):
        engine.sleep()
    engine.update_weights(folders[1])
    thread.join(60)
    assert waiting == [expected[1]]


@pytest.mark.whole
def test_an_engine_in_a_process_takes_folders_and_begins_anew_with_the_last(
    folders: list[Path], expected: list[list[int]]
) -> None:
    with opened(folders[0], process=True) as engine:
        engine.update_weights(folders[1])
        assert ids(engine) == expected[1] and engine.info()["model_path"] == str(folders[1])
        os.kill(engine.info()["pid"], signal.SIGKILL)
        while not engine.info()["restarts"]:
            time.sleep(0.1)
        assert ids(engine) == expected[1]


@pytest.mark.whole
def test_tensors_for_a_model_in_another_process_are_laid_in_a_folder(
    folders: list[Path], expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also such as share memory, and the process that is started next begins with them; what
    is wrong leaves no folder and changes nothing.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tensors = load_file(folders[1] / "model.safetensors")
    whole = torch.stack([tensors.pop(f"model.layers.{index}.mlp.up_proj.weight") for index in range(2)])
    tensors |= {f"model.layers.{index}.mlp.up_proj.weight": whole[index] for index in range(2)}
    laid = lambda: sorted(tmp_path.glob("sgl-weights-*"))  # noqa: E731
    with opened(folders[0], process=True) as engine:
        with pytest.raises(CheckpointError, match="lacks"):
            engine.update_weights({name: tensor for name, tensor in tensors.items() if "up_proj" not in name})
        with pytest.raises(CheckpointError, match=r"'model\.norm\.weight' is str"):
            engine.update_weights(tensors | {"model.norm.weight": "no tensor"})  # type: ignore[dict-item]
        assert not laid() and ids(engine) == expected[0]
        assert engine.update_weights(iter(tensors.items())) == sum(tensor.nbytes for tensor in tensors.values())
        (kept,) = laid()
        assert ids(engine) == expected[1] and engine.model_path == str(folders[0])
        os.kill(engine.info()["pid"], signal.SIGKILL)
        while not engine.info()["restarts"]:
            time.sleep(0.1)
        assert ids(engine) == expected[1]
        engine.update_weights(load_file(folders[0] / "model.safetensors"))
        assert ids(engine) == expected[0] and kept not in laid() and len(laid()) == 1
    assert not laid()


def test_a_layout_says_nothing_of_few_bits(folders: list[Path], tmp_path: Path) -> None:
    """The tensors are dense, whatever the files of before were; and without a
    directory there is nothing to lay them beside.
    """
    said = {"quantization_config": {"quant_method": "gptq"}, "text_config": {"compression_config": {}, "depth": 2}}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(said))
    (tmp_path / "model" / "quantize_config.json").write_text("{}")
    laid = TensorsOnDisk()
    with laid.written(tmp_path / "model", {"a": torch.ones(2, dtype=torch.bfloat16)}) as folder:
        assert json.loads((folder / "config.json").read_text()) == {"text_config": {"depth": 2}}
        assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    laid.close()
    with pytest.raises(ConfigError, match="give a model directory"), laid.written(tmp_path / "model.gguf", {}):
        pass


def test_dummy_weights_are_in_no_file(folders: list[Path], expected: list[list[int]], tmp_path: Path) -> None:
    with opened(folders[0], dummy=True) as engine:
        engine.update_weights(folders[0])
        assert ids(engine) == expected[0]
    quantised = write_checkpoint(tmp_path / "q", seed=1, tokenizer=True)
    edit_json(quantised / "config.json", tie_word_embeddings=True)
    save_file(
        {
            name: tensor
            for name, tensor in load_file(quantised / "model.safetensors").items()
            if name != "lm_head.weight"
        },
        quantised / "model.safetensors",
    )
    with opened(folders[0]) as engine, pytest.raises(CheckpointError, match="it differs in tied"):
        engine.update_weights(quantised)
