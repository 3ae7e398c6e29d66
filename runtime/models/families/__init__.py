"""The families: each a short function from config.json to a `Model`. Every file of this folder is one lineage."""

import importlib
import pkgutil

from .registry import FAMILIES, Family, family, read_model

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["FAMILIES", "Family", "family", "read_model"]
