"""The small unidirectional Transformer baseline on concatenated TrEMBL.

"Rethinking Attention with Performers", Figure 7 right: concatenated TrEMBL, windows of 8,192 tokens. Small size: 8
heads, width 256, MLP 256, and 3 layers; --model.num-layers 1 or 2 for the paper's other two.
The paper trained it on 8x8 TPU v2 and does not say its batch; 2,048 windows are those of concat_performer_relu. Give
--batches.batch-size for another machine.
"""

from proteinlm.config import VOCAB_SIZE, BatchesConfig, Config, ModelConfig, ObjectiveConfig, SoftmaxConfig


def get_config() -> Config:
    """Return the experiment."""
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
