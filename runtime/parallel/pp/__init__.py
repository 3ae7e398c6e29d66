"""Pipeline parallelism: stages of layers, and the links between them."""
