"""Hyper-parameter search: which settings to try (search), how long a trial lives (schedulers), where it runs (executors)."""
