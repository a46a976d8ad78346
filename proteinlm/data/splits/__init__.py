"""Which split a record belongs to: by held-out family and digest, by sequence identity, or from a manifest."""
