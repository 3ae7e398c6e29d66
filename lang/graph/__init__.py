"""Programs as graphs: traced without a model, improved by passes, drawn, and run."""
