"""What a model is made of, as data, and how config.json is read."""
