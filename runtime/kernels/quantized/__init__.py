"""GEMM with quantized weights, for small and large batches."""
