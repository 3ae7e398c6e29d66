"""How the bundled model `sgl-nano` is made: formats, data, tokenizer, training, scores."""
