"""The serverless target; its handler is still to be written (see docs/architecture.md)."""
