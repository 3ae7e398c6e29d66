"""The families: each a short function from config.json to a `Model`. Every file of this folder is one lineage, but for
`family_registry`, and `family_files`, which says where an architecture is.
"""

from .family_registry import FAMILIES, ModelFamily, family, read_model

__all__ = ["FAMILIES", "ModelFamily", "family", "read_model"]
