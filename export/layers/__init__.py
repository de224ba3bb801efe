"""Norms grouped into layers with one feature each."""
