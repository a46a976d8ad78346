"""Inference with a trained model: framing of proteins, logits, hidden states, attention matrices."""
