"""transformers' own implementation of a model over our cache, scheduler, grammars and sampler: for what no family
describes.

`config`: what is read and refused before loading; `attend`: its attention over our pages; `decoder`: a step; `load`:
    weights;
`proof`: the test at load that refuses a model which computes packed sequences otherwise than each alone.
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
