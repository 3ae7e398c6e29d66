"""Triton kernels of paged attention, and of writing its keys and values."""
