"""Tensors in files: safetensors headers, pickles, sources and their transfer to the device."""
