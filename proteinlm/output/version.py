"""The version of the package, which is written into every dataset and run."""

__version__ = "0.1.0"
