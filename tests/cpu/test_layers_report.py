"""`engine.info()["layers"]` says who computes what, the log says what is slower, and strict makes that an error."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from family_checks import SIZES

import sgl
from sgl.runtime.errors import ConfigError
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.linear_layers import BlockedLinear
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.loading import dummy_model, load_config
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.describe.describe_layers import describe_layer
from sgl.runtime.models.describe.explain_executors import LayerGroup, slower
from sgl.runtime.models.families import read_model
from sgl.runtime.models.layer_executors import expected_executors
from sgl.runtime.models.spec.model_spec import (
    AttentionSpec,
    GatedFFNSpec,
    LayerNorms,
    LayerSpec,
    NormSpec,
    PlainFFNSpec,
    QkNormSpec,
)

needs_kernels = pytest.mark.skipif(
    not cpu_kernels.can_multiply(torch.float32, torch.device("cpu")), reason="this CPU has no compiled products"
)
RMS, MEAN = NormSpec(1e-6), NormSpec(1e-5, "layer")
PLAIN = AttentionSpec(8, 4, 256, 0.0625, rope=RopeParameters(1e4, 256, 256))
OPTIONS: dict[str, Any] = {"kv_tokens": 256, "dtype": "float32"}


def layer(
    norms: LayerNorms = LayerNorms.pre(RMS), ffn: GatedFFNSpec | PlainFFNSpec = GatedFFNSpec(10240), **changes: Any
) -> LayerSpec:
    return LayerSpec(norms, replace(PLAIN, **changes), ffn)


@pytest.mark.parametrize(
    "made, line",
    [
        (
            layer(LayerNorms.both(RMS), GatedFFNSpec(10240, "gelu_tanh"), window=1024, norm=QkNormSpec(RMS)),
            "attention 8 heads, 4 kv, dim 256, window 1024, QK-norm per head; gated gelu_tanh 10240; norms before "
            "and after",
        ),
        (
            layer(
                LayerNorms.parallel_branches(MEAN),
                PlainFFNSpec(40, "gelu", True),
                kv_heads=8,
                rope=RopeParameters(1e4, 64, 256),
                bias=True,
                out_bias=True,
            ),
            "attention 8 heads, dim 256, RoPE on 64, biases; plain gelu 40, biases; layer norms in parallel",
        ),
        (
            layer(LayerNorms.post(RMS), rope=None, alibi=(0.5,) * 8, softcap=50.0, sinks=True, source=3),
            "attention 8 heads, 4 kv, dim 256, ALiBi positions, softcap 50, attention sinks, reads layer 3; gated "
            "silu 10240; norms after",
        ),
        (
            replace(layer(LayerNorms(before_mixer=RMS, before_ffn=MEAN)), branch=0.5, scalar=True),
            "attention 8 heads, 4 kv, dim 256; gated silu 10240; layer norms and norms before; branches times 0.5; "
            "layer times a learned number",
        ),
        (
            layer(LayerNorms(after_mixer=MEAN, after_ffn=MEAN, of_sum=True), rope=None, value_dim=128, chunk=64),
            "attention 8 heads, 4 kv, dim 256, values 128, no RoPE, chunk 64; gated silu 10240; layer norms after "
            "the addition",
        ),
    ],
)
def test_a_layer_in_one_line(made: LayerSpec, line: str) -> None:
    assert describe_layer(made) == line


def row(count: int, why: str | None = None, attention_why: str | None = None) -> LayerGroup:
    return LayerGroup("0-1", count, "parts", "torch" if why else "fused", why, "triton", attention_why)


def test_reasons_are_counted_over_the_rows() -> None:
    rows = [row(30, "ALiBi positions"), row(2), row(4, "ALiBi positions", "no flashinfer"), row(1, "sinks")]
    assert slower(rows) == [
        "34 of 37 layers use the torch executor: ALiBi positions",
        "1 of 37 layers use the torch executor: sinks",
        "4 of 37 layers use triton attention: no flashinfer",
    ]
    assert slower([row(3)]) == []


@needs_kernels
def test_all_fast_is_said_nowhere_and_passes_strict(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), sgl.Engine(tiny, strict=True, **OPTIONS) as engine:
        info = engine.info()
    assert [(row["executor"], row["why"], row["attention"]) for row in info["layers"]] == [("compiled", None, "cpu")]
    assert info["slower"] == [] and not caplog.records
    json.dumps(info)


@pytest.mark.whole
@needs_kernels
@pytest.mark.parametrize("process", [False, True])
def test_what_is_slower_is_logged_once_for_all_layers(
    tiny: Path, caplog: pytest.LogCaptureFixture, process: bool
) -> None:
    options = OPTIONS | {"attention": "torch_native", "process": process}
    with caplog.at_level(logging.WARNING), sgl.Engine(tiny, **options) as engine:
        (found,) = engine.info()["layers"]
    assert (found["executor"], found["why"]) == ("torch", "its attention uses torch_native")
    assert found["attention_why"] == "attention='torch_native' was asked for"
    layers = found["count"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tiny.name}: {layers} of {layers} layers use the torch executor: its attention uses torch_native",
        f"{tiny.name}: {layers} of {layers} layers use torch_native attention: attention='torch_native' was asked for",
    ]


@pytest.mark.whole
@needs_kernels
@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize("options, why", [({"dtype": "float16"}, "compute float32 and bfloat16, not float16")])
def test_strict_refuses_what_is_slower(tiny: Path, options: dict[str, Any], why: str, process: bool) -> None:
    with pytest.raises(ConfigError, match=rf"Engine\(strict=True\): \d of \d layers use the torch executor: .*{why}"):
        sgl.Engine(tiny, strict=True, process=process, **OPTIONS | options)


@needs_kernels
def test_deterministic_is_compiled_where_rows_do_not_depend_on_each_other(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sgl.Engine(tiny, strict=True, deterministic=True, **OPTIONS) as engine:
        assert {layer["executor"] for layer in engine.info()["layers"]} == {"compiled"}
    monkeypatch.setattr(
        BlockedLinear, "supports", staticmethod(lambda weight: False)
    )  # as of an odd number of inputs in bfloat16
    with pytest.raises(ConfigError, match="deterministic=True multiplies a fixed number of rows"):
        sgl.Engine(tiny, strict=True, deterministic=True, **OPTIONS)


def test_layers_that_differ_have_rows_of_their_own(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    keys = SIZES | {
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 16,
        "layer_types": kinds,
    }
    (tmp_path / "config.json").write_text(json.dumps(keys))
    model = dummy_model(load_config(tmp_path))
    from sgl.runtime.attention import attention_backend
    from sgl.runtime.models.describe.explain_executors import layers_of

    layout = model.config.attention
    rows = layers_of(model, attention_backend("auto", layout.pool(4, torch.float32), layout))
    assert [(found.layers, found.count, "window 16" in found.parts) for found in rows] == [
        ("0, 2-3", 3, False),
        ("1", 1, True),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "keys",
    [{}, {"hidden_act": "gelu"}, {"head_dim": 514}, {"hidden_size": 66, "head_dim": 16}, {"attention_bias": True}],
)
def test_what_is_expected_before_loading_is_what_runs(keys: dict[str, Any], dtype: torch.dtype) -> None:
    config = read_model(SIZES | {"architectures": ["LlamaForCausalLM"]} | keys)
    device = torch.device("cpu")
    foreseen = expected_executors(Decoder(config, dtype, "meta"), device)
    assert [ran.by for ran in foreseen] == [ran.by for ran in dummy_model(config, dtype).executors()]
