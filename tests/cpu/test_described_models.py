"""What is said of a model by its description alone, without torch, is what torch and the loaded parts say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_json, write_checkpoint

from sgl.runtime.attention import attention_backend
from sgl.runtime.attention.cpu.cpu_attention_support import expected_attention
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.executor import expected_device as module
from sgl.runtime.executor.device_choice import choose_device
from sgl.runtime.executor.expected_device import expected_device
from sgl.runtime.layers.rope_parameters import RopeParameters, exact_frequencies
from sgl.runtime.layers.rotary_embedding import frequencies
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.loading.load_plan import check_weights, plan_for
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.describe.family_listing import PARTS

CPU = torch.device("cpu")
OPTIONS = [
    (name, dtype, stored, deterministic)
    for name in ("auto", "cpu", "torch_native")
    for dtype in ("float32", "bfloat16", "float16")
    for stored in (dtype, "float8_e4m3fn")
    for deterministic in (False, True)
]


def asked(name: str, part: str, dtype: str, stored: str, deterministic: bool) -> list[tuple[str, str | None] | None]:
    layout = PARTS[part]().attention
    pool = layout.pool(32, getattr(torch, stored), CPU)
    backend = attention_backend(
        name, pool, layout, page_size=16, deterministic=deterministic, dtype=getattr(torch, dtype)
    )
    return [None if layer is None else backend.reasons(index) for index, layer in enumerate(layout.layers)]


@pytest.mark.parametrize("part", PARTS)
def test_attention_is_what_the_backends_choose(part: str) -> None:
    for name, dtype, stored, deterministic in OPTIONS:
        found = expected_attention(name, PARTS[part]().attention, dtype, stored, deterministic)
        if found is not None:
            assert found == asked(name, part, dtype, stored, deterministic)
        elif part != "compressed, chosen and latest tokens (NSA)":
            with pytest.raises(ConfigError):
                asked(name, part, dtype, stored, deterministic)


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_the_device_is_the_one_that_is_chosen(device: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose_device(device, dtype, 1)
    monkeypatch.delitem(module.sys.modules, "torch")  # as in a process that has not imported it
    assert module.torch_sees_no_gpu() <= (choice.device.type == "cpu")
    if choice.device.type == "cpu":
        assert expected_device(device, dtype) == ("cpu", str(choice.dtype).removeprefix("torch."))


@pytest.mark.parametrize("device, dtype", [("cpu", "int3"), ("nowhere", "auto"), ("cuda:77", "auto")])
def test_what_is_not_there_is_refused_in_the_same_words(device: str, dtype: str) -> None:
    with pytest.raises(ConfigError) as chosen:
        choose_device(device, dtype)
    with pytest.raises(ConfigError) as expected:
        expected_device(device, dtype)
    assert str(chosen.value) == str(expected.value)


@pytest.mark.parametrize(
    "text, driver, found",
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", True, True),
        ("cuda = None\nhip = None\n", True, True),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", True, False),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", False, True),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.1'\n", False, False),
        ("", False, False),
    ],
)
def test_builds_of_torch_that_see_no_gpu(
    text: str, driver: bool, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(text)
    spec = module.importlib.util.spec_from_file_location("torch", tmp_path / "__init__.py")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(module, "_has_driver", lambda: driver)
    assert module.torch_sees_no_gpu() is found


def random_rope(rng: random.Random, kind: str) -> RopeParameters:
    dim = rng.choice((4, 16, 64, 96))
    original = rng.choice((64, 4096, 8192))
    more: dict[str, Any] = {"factors": tuple(rng.uniform(1, 40) for _ in range(dim // 2))} if kind == "longrope" else {}
    return RopeParameters(
        rng.choice((1e4, 5e5, 1e6)),
        dim,
        dim * rng.choice((1, 2)),
        kind,
        factor=rng.uniform(1, 32),
        original_context=original,
        truncate=rng.random() < 0.5,
        **more,
    )


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn", "longrope", "alpha", "proportional"])
def test_frequencies_are_those_of_torch_before_rounding(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(30):
        rope = random_rope(rng, kind)
        exact = torch.tensor(exact_frequencies(rope), dtype=torch.float64)
        torch.testing.assert_close(frequencies(rope)[: len(exact)].double(), exact, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("changes", [{}, {"intermediate_size": 97}, {"num_hidden_layers": 5}, {"vocab_size": 7}])
def test_weights_that_do_not_fit_are_named_as_by_the_loader(changes: dict[str, Any], tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path)
    edit_json(path / "config.json", **changes)
    found = open_checkpoint(path)
    given = found.sources, found.readers, found.where

    def words(check: Any, *arguments: Any) -> str | None:
        try:
            check(*arguments)
        except CheckpointError as error:
            return str(error)
        return None

    said = words(plan_for, Decoder(found.model, torch.float32, "meta"), *given)
    assert words(check_weights, found.model, *given) == said and (said is None) == (not changes)
