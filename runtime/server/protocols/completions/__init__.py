"""OpenAI's `/v1/completions` and `/v1/embeddings`, and `/tokenize`."""
