"""From any fp32 classifier to one checked, quantized file that can adapt."""
