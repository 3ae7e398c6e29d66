"""Models from GGUF files: header, configuration, tensor names."""
