"""The two ends of PanDA's hyper-parameter search."""
