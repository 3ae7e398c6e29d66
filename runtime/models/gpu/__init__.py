"""Layers run by Triton kernels on a GPU."""
