"""The models: one configurable decoder, a table of architectures, the reader of their configuration."""

from .config import ModelConfig
from .decoder import Decoder
from .registry import ARCHITECTURES, Architecture, WeightNames, register

__all__ = ["ARCHITECTURES", "Architecture", "Decoder", "ModelConfig", "WeightNames", "register"]
