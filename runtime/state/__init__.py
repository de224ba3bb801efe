"""What was learned, on disk."""
