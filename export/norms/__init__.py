"""Finds norms and makes their affines inputs of the graph."""
