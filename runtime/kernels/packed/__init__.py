"""The layout of quantized weights on a GPU, and the PTX that unpacks them."""
