"""HTTP over the engine: thin, and the only place that knows status codes."""
