"""Decide which models share which machine."""
