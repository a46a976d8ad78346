"""Feature maps: random projections, polynomial sketches, and the normalisation of queries and keys."""
