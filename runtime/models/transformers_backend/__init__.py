"""transformers' own implementation of a model over our cache, scheduler, grammars and sampler: for what no family describes.

`config`: what is read and refused before loading; `attend`: its attention over our pages; `decoder`: a step; `load`: weights;
`proof`: the test at load that refuses a model which computes packed sequences otherwise than each alone.
"""

from ..decoder import Decoder
from .config import GenericModel, read_generic
from .decoder import GenericDecoder
from .load import load_generic

AnyDecoder = Decoder | GenericDecoder

__all__ = ["AnyDecoder", "GenericDecoder", "GenericModel", "load_generic", "read_generic"]
