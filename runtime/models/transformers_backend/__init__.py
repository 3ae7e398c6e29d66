"""transformers' own implementation of a model over our cache, scheduler, grammars and sampler.

It serves models that no family describes. `transformers_config`: the config, and refusals before loading;
`transformers_attention`: its attention over our pages; `transformers_decoder`: a step; `transformers_load`: weights;
`transformers_batching_check`: the test at load that refuses a model whose packed sequences differ from each alone.
"""

from ..decoder import Decoder
from .transformers_config import TransformersModelSpec, read_transformers_model
from .transformers_decoder import TransformersDecoder
from .transformers_load import load_transformers_model

AnyDecoder = Decoder | TransformersDecoder

__all__ = [
    "AnyDecoder",
    "TransformersDecoder",
    "TransformersModelSpec",
    "load_transformers_model",
    "read_transformers_model",
]
