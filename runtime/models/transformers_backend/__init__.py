"""transformers' own implementation of a model over our cache, scheduler, grammars and sampler.

It serves models that no family describes. `transformers_config`: the config, and refusals before loading;
`transformers_attention`: its attention over our pages; `transformers_decoder`: a step; `transformers_load`: weights;
`transformers_batching_check`: the test at load that refuses a model whose packed sequences differ from each alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.lazy_names import lazy_names

if TYPE_CHECKING:
    from .any_decoder import AnyDecoder
    from .transformers_config import TransformersModelSpec, read_transformers_model
    from .transformers_decoder import TransformersDecoder
    from .transformers_load import load_transformers_model

__all__ = [
    "AnyDecoder",
    "TransformersDecoder",
    "TransformersModelSpec",
    "load_transformers_model",
    "read_transformers_model",
]

_HOMES = {
    "any_decoder": ("AnyDecoder",),
    "transformers_config": ("TransformersModelSpec", "read_transformers_model"),
    "transformers_decoder": ("TransformersDecoder",),
    "transformers_load": ("load_transformers_model",),
}

__getattr__ = lazy_names(__name__, _HOMES)
