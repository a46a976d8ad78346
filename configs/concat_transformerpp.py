"""Unidirectional Transformer++ on concatenated TrEMBL: the exact baseline of concat_polysketch.

The recipe of trembl_transformerpp_causal (PolySketchFormer, appendix I) with windows of 8,192. 64 windows are the
paper's batch of 0.5M tokens. Set --batches.batch-size for another machine.
"""

from proteinlm.config import (
    VOCAB_SIZE,
    BatchesConfig,
    Config,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    SoftmaxConfig,
)


def get_config() -> Config:
    """Return the config."""
    return Config(
        model=ModelConfig(
            vocab_size=VOCAB_SIZE,
            num_layers=12,
            num_heads=12,
            embed_dim=768,
            mlp_dim=4 * 768,
            max_length=8192,
            dropout=0.0,
            attention=SoftmaxConfig(),
            dtype="bfloat16",
            remat="full",
            positions="sinusoidal_rotary",
            feed_forward="geglu",
            tied_output=True,
        ),
        objective=ObjectiveConfig(kind="causal"),
        optimizer=OptimizerConfig(
            learning_rate=7e-4, schedule="linear", warmup_steps=12_500, b1=0.95, b2=0.98, clip=1.0
        ),
        batches=BatchesConfig(form="concat", length=8192, batch_size=64),
        num_steps=125_000,
    )
