"""Token batches from a dataset: which examples share a batch, and how rows are packed."""
