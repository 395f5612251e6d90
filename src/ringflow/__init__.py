"""ringflow: scalable machine-learned particle flow."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "spark":  # `ringflow.spark.run` after `import ringflow`, which stays fast
        from importlib import import_module

        return import_module("ringflow.spark")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
