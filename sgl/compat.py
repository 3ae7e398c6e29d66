"""`sgl.compat.install()`: programs that say `import sglang as sgl` run on sgl, unchanged."""

from sgl.lang.compat import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
