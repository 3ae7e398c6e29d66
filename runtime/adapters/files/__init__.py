"""Reads LoRA adapters: PEFT directories, GGUF files and given tensors."""
