"""Servers of the native protocol: SGLang's, and ours."""
