"""Figures of an evaluation: every function takes histograms by reconstruction and returns a matplotlib figure."""
