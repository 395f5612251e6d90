"""ringflow: scalable machine-learned particle flow."""

__version__ = "0.1.0"
