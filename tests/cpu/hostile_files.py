"""Values that no checkpoint should have, put into each key of its files; and a process that loads what comes of it.

As a script it reads cases from its input, one JSON object a line, changes the checkpoint in the folder of its argument,
loads it as `sgl models` and as `Engine`, writes what became of it, and restores the file.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SECONDS, MEGABYTES = 2.0, 200  # of a machine that does nothing else; in a test twice as long
HANGS = 20  # seconds of work after which a case ends the process, and a tenth of those of waiting
DEEP = "[" * 3000 + "]" * 3000
RAW = {  # values that json.dumps does not write
    "<deep>": DEEP,
    "<wide>": "[" + ",".join(["[]"] * 50_000) + "]",
    "<digits>": "1" + "0" * 400,
    "<many digits>": "9" * 5000,
    "<nan>": "NaN",
    "<infinity>": "Infinity",
    "<minus infinity>": "-Infinity",
    "<tiny>": "1e-320",
    "<huge float>": "1e308",
    "<surrogate>": '"\\ud800"',
    "<nul>": '"a\\u0000b"',
    "<long text>": '"' + "a" * 300_000 + '"',
    "<numbers>": "[" + ",".join(["4000000000"] * 20_000) + "]",
}
VALUES: list[Any] = [
    *RAW,
    0,
    -1,
    1,
    4_000_000_000,
    10**9,
    2**63,
    -(2**63),
    0.5,
    True,
    False,
    None,
    "",
    "x",
    "../../etc/passwd",
    [],
    [0],
    [-1],
    ["x"],
    [None],
    [[]],
    {},
    {"a": 1},
    {"content": 5},
    {"content": "<x>"},
    [{"content": "x"}],
    {"0": {"content": "x"}},
    {"9999999999": {"content": "x"}},
    {"-1": {}},
]
MORE_KEYS = {
    "config.json": [
        "auto_map",
        "text_config",
        "quantization_config",
        "rope_scaling",
        "rope_theta",
        "layer_types",
        "sliding_window",
        "dtype",
        "torch_dtype",
        "_name_or_path",
        "tokenizer_class",
        "head_dim",
        "is_encoder_decoder",
        "pruned_heads",
        "id2label",
        "num_labels",
    ],
    "generation_config.json": ["eos_token_id", "bos_token_id", "max_length", "temperature"],
    "tokenizer_config.json": [
        "auto_map",
        "added_tokens_decoder",
        "additional_special_tokens",
        "extra_special_tokens",
        "add_bos_token",
        "add_eos_token",
        "legacy",
        "pad_token",
        "unk_token",
        "model_max_length",
        "init_inputs",
        "trust_remote_code",
        "name_or_path",
        "vocab_file",
        "x_token",
    ],
    "special_tokens_map.json": ["bos_token", "eos_token", "additional_special_tokens", "x_token"],
    "added_tokens.json": ["<x>", "<s>", ""],
    "chat_template.json": ["chat_template"],
    "sgl.json": ["json_options"],
    "model.safetensors.index.json": ["weight_map", "metadata", "weight_map/model.norm.weight"],
}


def read(file: Path) -> Any:
    return json.loads(file.read_text()) if file.exists() else {}


def keys_of(value: Any, above: tuple[Any, ...] = (), most: int = 6) -> Iterator[tuple[Any, ...]]:
    """Paths to the values in a file; of long lists and vocabularies the first few."""
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [])
    for key, part in pairs if not above else pairs[:most]:
        yield (*above, key)
        if len(above) < 4:
            yield from keys_of(part, (*above, key), most)


def cases(folder: Path) -> Iterator[dict[str, Any]]:
    """file, path in it (empty: all of it) and value."""
    for name in ("tokenizer.json", *MORE_KEYS):
        paths = [(), *((tuple(key.split("/"))) for key in MORE_KEYS.get(name, ())), *keys_of(read(folder / name))]
        for path in dict.fromkeys(paths):
            for value in VALUES:
                yield {"file": name, "path": path, "value": value}


def changed(found: Any, path: list[Any], value: Any) -> str:
    """The text of the file."""
    mark = "<the place>"
    if not path:
        found = mark
    else:
        place = found
        for key in path[:-1]:
            place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
        place[path[-1]] = mark
    instead = RAW[value] if isinstance(value, str) and value in RAW else json.dumps(value)
    return json.dumps(found).replace(json.dumps(mark), instead)


def spoil(folder: Path, case: dict[str, Any]) -> bytes | None:
    """Returns what was there."""
    file = folder / case["file"]
    before = file.read_bytes() if file.exists() else None
    file.write_text(changed(read(file), case["path"], case["value"]))
    return before


class Outcome(NamedTuple):
    """kind: of the error, or "loaded".  length: of its message, which is cut.  seconds: of
    the process.  megabytes: beyond what it held.
    """

    kind: str
    message: str
    length: int
    seconds: float
    megabytes: float


def outcomes(folder: Path, asked: list[dict[str, Any]]) -> list[Outcome]:
    """What became of each case, in one process; raises AssertionError for one that takes the process with it."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder)], input="\n".join(map(json.dumps, asked)), capture_output=True, text=True
    )
    found = [Outcome(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(found) == len(asked), (asked[len(found)], done.returncode, done.stderr[-2000:])
    return found


def check(case: dict[str, Any], found: Outcome) -> None:
    """It loads, or an error of ours names the file, and the key where the file can be read."""
    told = (case, found)
    assert found.seconds < 2 * SECONDS and found.megabytes < MEGABYTES, told
    if found.kind == "loaded":
        return
    assert (
        found.kind in ("ConfigError", "CheckpointError", "BadTemplate", "TemplateTooCostly") and found.length < 3000
    ), told
    assert "sgl models says nothing" not in found.message, told
    assert case["file"] in found.message or (case["file"].endswith("index.json") and "safetensors" in found.message), (
        told
    )
    unread = (
        "JSON" in found.message
        or "config.json asks for" in found.message
        or "config.json describes" in found.message
        or case["file"] == "tokenizer.json"
    )
    assert (
        unread
        or not case["path"]
        or str(case["path"][0]).removesuffix("_config") in found.message
        or "quantised" in found.message
    ), told


def memory(kind: str) -> float:
    """Megabytes: VmRSS is held now, VmHWM was at most."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) / 1024


def load(folder: Path) -> tuple[str, str]:
    """By both ways; what loads must also answer."""
    from sgl.lang.chat.tokenizer_chat_template import JinjaChatTemplate
    from sgl.lang.errors import ProgramError
    from sgl.runtime import Engine
    from sgl.runtime.build.engine_config import EngineConfig
    from sgl.runtime.build.memory_estimate import estimate_memory
    from sgl.runtime.errors import RuntimeFailure

    options = {"device": "cpu", "dtype": "float32", "kv_tokens": 256, "context": 64}
    try:
        told = estimate_memory(folder, EngineConfig.from_options(options))
        problem = told.text.problem or told.files.problem
    except RuntimeFailure as error:
        problem = str(error)
    except Exception as error:
        return f"{type(error).__name__} of sgl models", str(error)
    try:
        with Engine(folder, **options) as engine:
            text = next((text for text in ("a", "b", "x") if len(engine.tokenizer.encode(text))), None)
            if text is not None:  # a tokenizer may leave out what it does not know
                engine.generate(text, max_tokens=1)
            if engine.tokenizer.chat_template is not None:
                JinjaChatTemplate(engine.tokenizer)
    except ProgramError as error:  # by the template alone, which is tried when it is needed
        return type(error.__cause__).__name__, f"{folder / 'tokenizer_config.json'}: {error}"
    except Exception as error:
        kind = type(error).__name__
        return kind, f"{error}" if problem is not None or kind not in (
            "ConfigError",
            "CheckpointError",
            "BadTemplate",
        ) else f"sgl models says nothing of: {error}"
    return "loaded", ""


def main(folder: Path) -> None:
    told, sys.stdout = sys.stdout, sys.stderr  # libraries print about what they ignore
    import transformers.models.auto  # noqa: F401

    load(folder)  # what is imported and cached is not counted
    gc.collect()
    gc.freeze()  # nor looked through whenever an engine starts
    for line in sys.stdin:
        case = json.loads(line)
        before = spoil(folder, case)
        Path("/proc/self/clear_refs").write_text("5")
        held, clock = memory("VmRSS"), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, HANGS)
        signal.alarm(10 * HANGS)
        kind, message = load(folder)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        seconds, peak = time.process_time() - clock, memory("VmHWM") - held
        (folder / case["file"]).unlink() if before is None else (folder / case["file"]).write_bytes(before)
        print(json.dumps([kind, message[:4000], len(message), seconds, peak]), file=told, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    main(Path(sys.argv[1]))
