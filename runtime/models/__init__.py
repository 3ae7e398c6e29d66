"""Models: their layers as data (`spec`), the families that read them from config.json, and the decoder that runs
them.
"""

from ..common.moved_names import moved_names
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

_MOVED = {
    "Family": "models.families.ModelFamily",
    "Merged": "models.spec.tensor_names.MergedProjections",
    "Model": "models.spec.model_spec.ModelSpec",
    "Names": "models.spec.tensor_names.TensorNames",
}

__getattr__ = moved_names(__name__, _MOVED)
