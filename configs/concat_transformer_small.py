"""The small unidirectional Transformer baseline on concatenated TrEMBL.

"Rethinking Attention with Performers", Figure 7 right: concatenated TrEMBL, windows of 8,192 tokens, small size (8
heads, width 256, MLP 256, 3 layers). The paper's other two sizes have --model.num-layers 1 and 2. The paper trained on
8x8 TPU v2 and does not give the batch; this config has that of concat_performer_relu. Set --batches.batch-size for
another machine.
"""

from proteinlm.config import VOCAB_SIZE, BatchesConfig, Config, ModelConfig, ObjectiveConfig, SoftmaxConfig


def get_config() -> Config:
    """Return the config."""
    return Config(
        model=ModelConfig(
            vocab_size=VOCAB_SIZE,
            num_layers=3,
            num_heads=8,
            embed_dim=256,
            mlp_dim=256,
            max_length=8192,
            attention=SoftmaxConfig(),
            dtype="bfloat16",
            remat="full",
        ),
        objective=ObjectiveConfig(kind="causal"),
        batches=BatchesConfig(form="concat", length=8192, batch_size=2048),
        num_steps=500_000,
    )
