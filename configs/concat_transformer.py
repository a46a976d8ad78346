"""The regular unidirectional Transformer on concatenated TrEMBL, the baseline that the Performer replaces.

"Rethinking Attention with Performers", section 4.4: windows of 8,192 tokens, regular size (6 layers, 8 heads, width
512, MLP 2048), where "a regular Transformer overloads memory even at a batch size of 1 per chip, by a wide margin". The
paper's attention holds the whole matrix in memory; this package computes a block of queries at a time, so that the
model can be trained (docs/tpu.md). The batch is that of concat_performer_relu. Set --batches.batch-size for another
machine.
"""

from proteinlm.config import VOCAB_SIZE, BatchesConfig, Config, ModelConfig, ObjectiveConfig, SoftmaxConfig


def get_config() -> Config:
    """Return the config."""
    return Config(
        model=ModelConfig(
            vocab_size=VOCAB_SIZE,
            num_layers=6,
            num_heads=8,
            embed_dim=512,
            mlp_dim=2048,
            max_length=8192,
            attention=SoftmaxConfig(),
            dtype="bfloat16",
            remat="full",
        ),
        objective=ObjectiveConfig(kind="causal"),
        batches=BatchesConfig(form="concat", length=8192, batch_size=2048),
        num_steps=500_000,
    )
