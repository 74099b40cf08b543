"""The model server: engine, tasks, backends, and a thin HTTP layer."""
