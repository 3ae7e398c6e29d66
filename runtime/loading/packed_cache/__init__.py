"""The cache of packed weights: what a first start on the CPU packed is taken from a file at the second."""
