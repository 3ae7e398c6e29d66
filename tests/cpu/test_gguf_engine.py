"""An engine out of a GGUF file answers as the one of its safetensors twin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import CHAT_TEMPLATE, write_checkpoint
from gguf_convert import write_twin
from tokenizers import Tokenizer as Backend

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.build.build_tokenizer import load_tokenizer
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.build.memory_estimate import estimate_memory
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.loading.gguf_files import gguf_file, kept_headers

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_gguf_tokenizer import byte_level_keys

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "kv_tokens": 512}
PROMPTS = ["The quick brown", '{"name": "Zo', "1 + 1"]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("gguf") / "model", tokenizer=True)


def file_of(twin: Path, kind: Any = "F32", name: str = "model.gguf") -> Path:
    keys = byte_level_keys(Backend.from_file(str(twin / "tokenizer.json")), "gpt-2", bos_token_id=0, eos_token_id=1)
    keys |= {"tokenizer.chat_template": CHAT_TEMPLATE}
    del keys["general.architecture"]
    return write_twin(twin, twin / name, "llama", kind, keys)


def texts(path: Path, **options: Any) -> list[str]:
    with Engine(path, **OPTIONS | options) as engine:
        return [done.text for done in engine.generate(PROMPTS, GREEDY)]


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"weights": "int8"}, {"process": True}])
def test_texts_are_those_of_the_twin(twin: Path, options: dict[str, Any]) -> None:
    assert texts(file_of(twin), **options) == texts(twin, **options)


def test_chat_and_end_tokens_are_those_of_the_twin(twin: Path) -> None:
    """Files of GGUF name one end; <|im_end|> is another by its name."""
    ours, theirs = (load_tokenizer(path, EngineConfig()) for path in (file_of(twin), twin))
    assert (
        ours.eos_ids == (*theirs.eos_ids, 3) and ours.vocab_size == theirs.vocab_size and ours.bos_id == theirs.bos_id
    )
    assert ours.chat_template is not None and theirs.chat_template is not None
    assert ours.encode(PROMPTS[0]).tolist() == theirs.encode(PROMPTS[0]).tolist()


def test_blocks_are_restored_or_kept_and_the_engine_says_which(twin: Path) -> None:
    path = file_of(twin, "Q8_0")
    with Engine(path, **OPTIONS, weights="int8") as engine:
        (told,) = engine.info()["few_bits"]
        assert "projections of GGUF Q8_0: restored to float32" in told
        assert len(engine.generate(PROMPTS[0], GREEDY).token_ids) == 12
    with pytest.raises(ConfigError, match="restored to float32"):
        Engine(path, **OPTIONS, weights="int8", strict=True)


def test_a_survey_of_a_file_says_what_it_holds(twin: Path) -> None:
    found = estimate_memory(file_of(twin, "Q8_0"), EngineConfig.from_options(OPTIONS))
    assert found.loads and found.files.count == 1 and set(found.files.dtypes) == {"F32", "Q8_0"} and found.text.chat


def test_a_start_reads_the_header_once(twin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model, the weights, the tokenizer and adapters all ask for it."""
    seen: list[Path] = []
    read = gguf_file._read_file
    monkeypatch.setattr(gguf_file, "_read_file", lambda file: seen.append(file) or read(file))
    path = file_of(twin)
    with Engine(path, **OPTIONS, adapter_slots=1):
        assert seen == [path] and not kept_headers._kept
    estimate_memory(path, EngineConfig.from_options(OPTIONS))
    assert seen == [path] * 2


def test_a_file_without_a_known_tokenizer_is_refused(twin: Path) -> None:
    with pytest.raises(ConfigError, match=r"bare\.gguf.*tokenizer\.ggml\.model"):
        Engine(write_twin(twin, twin / "bare.gguf", "llama"), **OPTIONS)


def test_damaged_files_are_named(twin: Path) -> None:
    data = file_of(twin).read_bytes()
    for name, part in (("cut.gguf", data[: len(data) // 2]), ("other.gguf", b"PK" + data), ("empty.gguf", b"")):
        (twin / name).write_bytes(part)
        with pytest.raises(CheckpointError, match=rf"{name} \(.* bytes\) is damaged or cut short"):
            Engine(twin / name, **OPTIONS)
