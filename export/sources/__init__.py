"""What the user names becomes one fp32 ONNX classifier."""
