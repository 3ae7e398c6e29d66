"""The names of PEFT's files."""

CONFIG, SAFETENSORS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
