"""Studies on simulated clusters: recorded learning curves, a cost model, and the schedulers as they are."""
