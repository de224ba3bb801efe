"""Primed alignment, the default for primed files."""
