"""Decoders: language models and what gives them eyes, as adaptable ONNX files."""
