"""From a model directory to a decoder that transformers computes."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import CheckpointError, ConfigError
from .transformers_attention import NAME, register
from .transformers_batching_check import check_batching, needs_remote_code
from .transformers_config import TransformersModelSpec
from .transformers_decoder import TransformersDecoder


def load_transformers_model(
    model: TransformersModelSpec,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int | None = None,
    load_format: str = "auto",
) -> TransformersDecoder:
    """The checkpoint in `dtype` on `device`, or with a seed random weights of its shape.

    load_format: "pt" accepts pickled files too.
    Raises CheckpointError for tensors that are missing, left over or of another shape, and ConfigError if the model
    does not compute packed sequences as it computes each alone.
    """
    register()
    module = _module(model, dtype, seed, load_format == "pt").eval().requires_grad_(False).to(device)
    module.set_attn_implementation(NAME)
    if module.config._attn_implementation != NAME:
        raise ConfigError(
            f"{model.architecture} does not let its attention be replaced, so transformers cannot run it over our cache"
        )
    with needs_remote_code(model.architecture):
        decoder = TransformersDecoder(model, module, dtype, torch.device(device))
    check_batching(decoder)
    return decoder


def _module(model: TransformersModelSpec, dtype: torch.dtype, seed: int | None, pickles: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = {"trust_remote_code": model.remote_code, "dtype": dtype}
    try:
        if seed is not None:
            torch.manual_seed(seed)
            config = AutoConfig.from_pretrained(model.path, local_files_only=True, trust_remote_code=model.remote_code)
            return AutoModelForCausalLM.from_config(config, **options)
        options["use_safetensors"] = None if pickles else True  # None: also pickles, by weights_only
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model.path, local_files_only=True, output_loading_info=True, **options
        )
    except Exception as error:  # whatever the library finds wrong
        raise CheckpointError(f"transformers cannot load {model.path}: {type(error).__name__}: {error}") from error
    module, report = loaded
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, report.get(what) or ())):
            raise CheckpointError(
                f"{model.path}: {what.replace('_keys', '')} tensors for {model.architecture}: {', '.join(names[:5])}"
            )
    return module
