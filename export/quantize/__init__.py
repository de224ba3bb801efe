"""Recipes of the quantized precisions."""
