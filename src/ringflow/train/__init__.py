"""Training: batches, loss, optimiser, checkpoints and the loop."""
