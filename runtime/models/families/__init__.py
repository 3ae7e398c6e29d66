"""The families: each a short function from config.json to a `Model`. Every file of this folder is one lineage."""

import importlib
import pkgutil

from .family_registry import FAMILIES, ModelFamily, family, read_model

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["FAMILIES", "ModelFamily", "family", "read_model"]
