"""Rule-based particle flow, and perfect particle flow: what a model is held against."""
