"""Compile models for a processor, prove them equal, measure and publish them."""
