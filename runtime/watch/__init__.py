"""What the stream shows: statistics, drift, when to adapt, when to stop."""
