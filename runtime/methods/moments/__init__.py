"""Channel-moment alignment, the default where calibration found it the best."""
