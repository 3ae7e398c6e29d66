"""What a model is made of, as data, and how config.json is read."""

from ...common.moved_names import moved_names

_MOVED = {
    "Norm": "models.spec.model_spec.NormSpec",
    "HeadNorm": "models.spec.model_spec.QkNormSpec",
    "Temperature": "models.spec.model_spec.QueryTemperature",
    "Attention": "models.spec.model_spec.AttentionSpec",
    "Gated": "models.spec.model_spec.GatedFFNSpec",
    "Plain": "models.spec.model_spec.PlainFFNSpec",
    "Router": "models.spec.model_spec.RouterSpec",
    "Experts": "models.spec.model_spec.ExpertsSpec",
    "ShortConv": "models.spec.model_spec.ShortConvSpec",
    "Beside": "models.spec.model_spec.ParallelMixersSpec",
    "Norms": "models.spec.model_spec.LayerNorms",
    "PerLayer": "models.spec.model_spec.PerLayerEmbeddingsSpec",
    "Layer": "models.spec.model_spec.LayerSpec",
    "Learned": "models.spec.model_spec.LearnedPositions",
    "Sines": "models.spec.model_spec.SinusoidalPositions",
    "Model": "models.spec.model_spec.ModelSpec",
}

__getattr__ = moved_names(__name__, _MOVED)
