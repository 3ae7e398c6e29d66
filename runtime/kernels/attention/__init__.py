"""Triton kernels of paged attention, and what writes its keys and values."""
