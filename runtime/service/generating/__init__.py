"""Answers that grow token by token, and take turns."""
