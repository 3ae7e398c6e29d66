"""Triton kernels of the runtime: one idea a file, each compared with torch in the tests.

Nothing here is imported unless a CUDA device is used (or the tests ask for Triton's interpreter).
"""
