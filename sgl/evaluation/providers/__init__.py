"""sgl as a model of other evaluation packages."""
