"""The reference implementation of every layer in torch, which also holds the weights."""
