"""The regular model with attention that returns V, on concatenated TrEMBL: the cost of all but attention.

"Rethinking Attention with Performers", Figure 7 right: concatenated TrEMBL, windows of 8,192 tokens. It is the paper's
"X (OPT)" at the regular size: 6 layers, 8 heads, width 512, MLP 2048. The paper trained with 8 windows per chip on
16x16 TPU v2, 2,048 in all. Set --batches.batch-size for another machine.
"""

from proteinlm.config import VOCAB_SIZE, BatchesConfig, Config, IdentityConfig, ModelConfig, ObjectiveConfig


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
            attention=IdentityConfig(),
            dtype="bfloat16",
            remat="full",
        ),
        objective=ObjectiveConfig(kind="causal"),
        batches=BatchesConfig(form="concat", length=8192, batch_size=2048),
        num_steps=500_000,
    )
