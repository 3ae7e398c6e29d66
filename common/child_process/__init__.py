"""Child processes: how they start."""
