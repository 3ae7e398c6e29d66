"""Tiny checkpoints and engines for the tests on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))

import pytest
from checkpoints import write_checkpoint

from sgl.runtime import Engine


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A random Llama of three layers with a byte-level tokenizer and a context of 512."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), tokenizer=True)


@pytest.fixture(scope="session")
def other_weights(tmp_path_factory) -> list[Path]:
    """Two models like `tiny` of other weights; the second lacks a tensor of its last layer."""
    from safetensors.torch import load_file, save_file

    whole, damaged = (write_checkpoint(tmp_path_factory.mktemp("other"), tokenizer=True, seed=7) for _ in range(2))
    for file in damaged.glob("*.safetensors"):
        save_file({name: tensor for name, tensor in load_file(file).items() if "layers.2.mlp.down" not in name}, file)
    return [whole, damaged]


@pytest.fixture(scope="session")
def adapters(tiny, tmp_path_factory) -> list[Path]:
    """64 adapters of `tiny`."""
    from ranks_adapters import write_adapters

    return write_adapters(tiny, tmp_path_factory.mktemp("adapters"), 64)


@pytest.fixture(scope="session")
def kinds_of_adapters(tiny, tmp_path_factory) -> dict[str, Path]:
    """Adapters of `tiny` that have more than pairs."""
    from ranks_adapters import write_kinds

    return write_kinds(tiny, tmp_path_factory.mktemp("kinds"))


@pytest.fixture(params=[False, True], ids=["in-step", "ahead"])
def open_engine(tiny, request) -> Iterator[Callable[..., Engine]]:
    """Opens engines in float32 whose every step is followed by a walk over tree, pages and sequences.

    In step and with the next step launched before the last one's tokens are read, as on a GPU.
    """
    engines: list[Engine] = []

    def build(**options: Any) -> Engine:
        options = {
            "dtype": "float32",
            "threads": 1,
            "kv_tokens": 4096,
            "poison_freed": True,
            "run_ahead": request.param,
        } | options
        engine = Engine(options.pop("model", tiny), **options)
        engine._core.after_step = engine._core.check
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(open_engine) -> Engine:
    return open_engine()


@pytest.fixture(scope="session")
def bundled() -> Iterator[Engine]:
    """The bundled model: one engine for all tests that ask it and leave it as it is."""
    with Engine(threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(bundled, request) -> Iterator[str]:
    """A server of the bundled model, with the settings that the test's module calls SERVER."""
    from server_rig import serving

    with serving(bundled, **getattr(request.module, "SERVER", {})) as found:
        yield found


@pytest.fixture(scope="module")
def place(tmp_path_factory, request) -> Path:
    """A directory that new interpreters look into: they run the module's SITE, in
    which {mark} is the path of its file `now`.
    """
    made: Path = tmp_path_factory.mktemp("site")
    (made / "sitecustomize.py").write_text(request.module.SITE.format(mark=str(made / "now")))
    return made
