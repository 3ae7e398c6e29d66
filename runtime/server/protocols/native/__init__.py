"""The native protocol: `/generate` and its control routes."""
