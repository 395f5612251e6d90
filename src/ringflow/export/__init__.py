"""Networks as ONNX files that take raw detector values and return particles."""
