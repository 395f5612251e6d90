"""Use a trained network: elements in, candidates out."""
