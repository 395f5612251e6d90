"""Rule-based particle flow, and perfect particle flow: what a model has to beat, and what it cannot."""
