"""Masked (bidirectional) Transformer on single TrEMBL sequences.

"Rethinking Attention with Performers", Table 2 and Figure 6: 36 layers, 8 heads, width 512, MLP 1024, sequences clipped
to 1,024. The optimizer is the paper's (the defaults of OptimizerConfig). The paper used the largest batch that fits
16x16 TPU v2 and does not give its size; 512 is one sequence per core. Set --batches.batch-size for another machine.
"""

from proteinlm.config import VOCAB_SIZE, BatchesConfig, Config, ModelConfig, ObjectiveConfig, SoftmaxConfig


def get_config() -> Config:
    """Return the config."""
    return Config(
        model=ModelConfig(
            vocab_size=VOCAB_SIZE,
            num_layers=36,
            num_heads=8,
            embed_dim=512,
            mlp_dim=1024,
            max_length=1024,
            attention=SoftmaxConfig(),
            dtype="bfloat16",
            remat="full",
        ),
        objective=ObjectiveConfig(kind="masked"),
        batches=BatchesConfig(form="single", length=1024, batch_size=512, buckets=(256, 512, 1024)),
        num_steps=500_000,
    )
