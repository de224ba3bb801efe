"""Reads or builds the fp32 classifier that the user names."""
