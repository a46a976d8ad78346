"""Unidirectional PolySketchFormer (learned + local, r = 32) on single TrEMBL sequences.

The recipe of trembl_transformerpp_causal (PolySketchFormer, appendix I), with polysketch attention of degree 4 and 13
layers, as the paper's kernel models; exact models have 12 (section 4). Local blocks are of 256, which is our choice:
with the paper's blocks of 1,024, a sequence would be one block, and attention exact. concat_polysketch has the paper's
blocks.
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
            max_length=1024,
            dropout=0.0,
            attention=PolySketchConfig(degree=4, sketch_size=32, learned=True, local=True, block_size=256),
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
        batches=BatchesConfig(form="single", length=1024, batch_size=512, buckets=(256, 512, 1024)),
        num_steps=125_000,
    )
