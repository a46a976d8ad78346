"""The folder of a training run: its lock, checkpoints, logs, curves, and the report over several runs."""
