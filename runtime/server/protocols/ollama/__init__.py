"""Ollama's chat and generate: requests become chat requests, answers are lines of JSON."""
