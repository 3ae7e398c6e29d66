"""Grammars on a device: needs torch and triton, which the rest of `sgl.grammars` does without."""

from sgl.grammars.device.device_grammar_pool import DevicePool

__all__ = ["DevicePool"]
