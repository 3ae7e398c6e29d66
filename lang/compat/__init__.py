"""The opt-in alias: programs that say `import sglang as sgl` run on sgl, unchanged."""

from .alias import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
