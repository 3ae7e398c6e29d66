"""Tokenizers from the files in which checkpoints keep them."""
