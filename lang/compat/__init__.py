"""The opt-in alias: programs that say `import sglang as sgl` run on sgl, unchanged."""

from .sglang_alias import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
