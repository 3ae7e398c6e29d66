"""What mixes tokens by a state of fixed size that each sequence carries along, on ragged batches; exact in float32."""

from . import compiled
from .convolution import causal_convolution
from .linear import LinearAttention
from .ragged import Ragged
from .selective import SelectiveScan

__all__ = ["LinearAttention", "Ragged", "SelectiveScan", "causal_convolution", "compiled"]
