"""Unidirectional PolySketchFormer (learned + local, r = 32) on concatenated TrEMBL.

The recipe of trembl_transformerpp_causal (PolySketchFormer, appendix I), with polysketch attention of degree 4, local
blocks of 1,024 and windows of 8,192. It has 13 layers, as the paper's kernel models; exact models have 12 (section 4).
64 windows are the paper's batch of 0.5M tokens. Set --batches.batch-size for another machine.
"""

from proteinlm.config import (
    VOCAB_SIZE,
    BatchesConfig,
    Config,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PolySketchConfig,
)


def get_config() -> Config:
    """Return the config."""
    return Config(
        model=ModelConfig(
            vocab_size=VOCAB_SIZE,
            num_layers=13,
            num_heads=12,
            embed_dim=768,
            mlp_dim=4 * 768,
            max_length=8192,
            dropout=0.0,
            attention=PolySketchConfig(degree=4, sketch_size=32, learned=True, local=True, block_size=1024),
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
