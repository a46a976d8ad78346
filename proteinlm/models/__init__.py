"""The model (transformer.py), its positions, training objectives, and attention mechanisms (attention/)."""
