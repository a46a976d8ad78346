"""Files -> records -> splits -> dataset -> batches."""
