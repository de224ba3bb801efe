"""From files, cameras and arrays to batches, and from answers to files."""
