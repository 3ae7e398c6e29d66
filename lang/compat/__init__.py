"""Programs written for `import sglang as sgl`, unchanged."""
