"""Decoders of either implementation."""

from __future__ import annotations

from ..decoder import Decoder
from .transformers_decoder import TransformersDecoder

AnyDecoder = Decoder | TransformersDecoder
