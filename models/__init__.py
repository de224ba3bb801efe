"""Torch definitions that load timm-named checkpoints, and the small models that ship inside."""
