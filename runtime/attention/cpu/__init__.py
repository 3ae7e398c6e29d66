"""Attention by the compiled kernels on a CPU."""
