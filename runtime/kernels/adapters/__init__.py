"""Triton kernels of LoRA adapters, for batches whose rows use different ones."""
