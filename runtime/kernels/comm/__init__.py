"""Kernels by which GPUs exchange data through each other's memory: all-reduce, gather, broadcast, point to point."""
