"""Routes, limits and access."""
