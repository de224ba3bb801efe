"""BN-Adapt: BatchNorm statistics of the stream."""
