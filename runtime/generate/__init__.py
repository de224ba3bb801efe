"""Generating models: decoders that answer token by token, and adapt while they do."""
