"""OpenAI, and servers that speak its protocol."""
