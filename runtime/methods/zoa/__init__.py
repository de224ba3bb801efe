"""ZOA: zeroth-order steps that remember domains."""
