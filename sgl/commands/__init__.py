"""The commands of `sgl`, one module each."""
