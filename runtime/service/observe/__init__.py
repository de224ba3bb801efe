"""Metrics, logs and what the dashboard shows."""
