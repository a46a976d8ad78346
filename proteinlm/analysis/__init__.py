"""What a model's attention has learned; takes a model and tokens, never a path to a run."""
