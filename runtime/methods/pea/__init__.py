"""PEA: covariance alignment block by block."""
