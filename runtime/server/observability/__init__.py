"""The record of each request, and the metrics, logs and traces made of it."""
