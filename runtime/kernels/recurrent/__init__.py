"""Triton kernels of mixers that keep a state: linear attention, Mamba, short convolutions."""
