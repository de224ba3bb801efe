"""Norms found, and their affines made inputs."""
