"""ONNX graphs: indexed, edited, measured and cut. Needs the onnx package: import it late."""
