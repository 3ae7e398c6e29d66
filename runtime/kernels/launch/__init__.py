"""How kernels are compiled ahead of time and launched."""
