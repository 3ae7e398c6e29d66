"""Layers run by the compiled C kernels on a CPU."""
