"""A trained model and proteins: how proteins are framed as tokens, and what the model computes of them."""
