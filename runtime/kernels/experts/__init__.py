"""Triton kernels of mixtures of experts: routing, alignment, grouped GEMM and GEMV."""
