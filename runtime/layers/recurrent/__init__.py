"""Mixers with a state of fixed size per sequence, on ragged batches; exact in float32."""

from . import cpu_recurrent_kernels
from .linear_attention import LinearAttention
from .ragged_causal_conv import causal_convolution
from .ragged_sequences import RaggedSequences
from .selective_scan import SelectiveScan

__all__ = ["LinearAttention", "RaggedSequences", "SelectiveScan", "causal_convolution", "cpu_recurrent_kernels"]
