"""From answered requests to updates, and their snapshots."""
