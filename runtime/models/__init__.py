"""Models: their layers as data (`spec`), the families that read them from config.json, and the decoder that runs
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import lazy_names

if TYPE_CHECKING:
    from .decoder import Decoder
    from .families import FAMILIES, ModelFamily, family, read_model
    from .spec.model_spec import ModelSpec
    from .spec.tensor_names import MergedProjections, TensorNames

__all__ = [
    "FAMILIES",
    "Decoder",
    "MergedProjections",
    "ModelFamily",
    "ModelSpec",
    "TensorNames",
    "family",
    "read_model",
]

_HOMES = {
    "decoder": ("Decoder",),
    "families": ("FAMILIES", "ModelFamily", "family", "read_model"),
    "spec.model_spec": ("ModelSpec",),
    "spec.tensor_names": ("MergedProjections", "TensorNames"),
}
_MOVED = {
    "Family": "models.families.ModelFamily",
    "Merged": "models.spec.tensor_names.MergedProjections",
    "Model": "models.spec.model_spec.ModelSpec",
    "Names": "models.spec.tensor_names.TensorNames",
}

__getattr__ = lazy_names(__name__, _HOMES, _MOVED)
