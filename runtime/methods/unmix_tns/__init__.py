"""UnMix-TNS: BatchNorm statistics of several components."""
