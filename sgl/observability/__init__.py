"""Programs as other tools see them: spans for OpenTelemetry."""
