"""Adapters of mixers other than attention and of mixtures of experts, by the runner of a GPU:
its kernels interpreted, its graphs functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_tokenizer
from family_checks import reference
from test_adapters_experts import CASES as EXPERTS
from test_adapters_extras import MIXERS, trained
from test_adapters_extras_gpu import opened

from sgl.runtime import Engine, SamplingParams

pretend = pytest.importorskip("gpu_runner").pretend
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, tests/gpu does the same")
PLAIN = [case for case in MIXERS if "dora" not in case]
CASES: dict[str, tuple[tuple[str, dict[str, Any]], dict[str, Any]]] = MIXERS | {
    case: EXPERTS[case] for case in ("all parameters", "shared", "in turn and transposed")
}


def told(engine: Engine) -> list[tuple[list[int], list[float]]]:
    """The same prompt by the adapter, by the base and by the adapter again, in one batch: tokens and their scores."""
    sequences = [engine.open(adapter=owner) for owner in ("a", None, "a")]
    for sequence in sequences:
        sequence.extend(list(range(30, 39)))
    asked = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True, logprobs=True)
    made = [future.result(60) for future in [sequence.generate(asked) for sequence in sequences]]
    return [(each.token_ids, [score for score, _ in each.logprobs]) for each in made]


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_texts_are_those_of_the_cpu(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (architecture, keys), lora = CASES[case]
    layers: dict[str, Any] = {} if case == "short convolutions" else {"num_hidden_layers": 2}
    model = reference(architecture, **keys | layers)
    model.save_pretrained(tmp_path / "base")
    base = write_tokenizer(tmp_path / "base")
    trained(model, tmp_path / "a", **lora)
    found = []
    for on_gpu in (False, True):
        if on_gpu:
            pretend(monkeypatch)
        with opened(base, adapters={"a": tmp_path / "a"}, adapter_slots={8: 1}) as engine:
            found.append(told(engine))
            if on_gpu:
                assert engine.info()["adapters"]["executor"] == "fused"
                assert (engine.info()["adapters"]["outside"] == {}) == (case in PLAIN)
    for ours, theirs in zip(*found, strict=True):
        assert ours[0] == theirs[0] and ours[1] == pytest.approx(theirs[1], abs=1e-3)
    assert found[0][0] != found[0][1]
