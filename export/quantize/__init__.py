"""INT8 and FP8 recipes."""
