"""Use a trained network: elements in, candidates out; as a file of ONNX, behind HTTP, on a cluster."""
