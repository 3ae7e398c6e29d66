"""Where a model is and which of its files are read: directory, hub, configuration."""
