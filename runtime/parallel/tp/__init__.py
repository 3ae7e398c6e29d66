"""Tensor parallelism: which slices of the weights and adapters each rank holds."""
