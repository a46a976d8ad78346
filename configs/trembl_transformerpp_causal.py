"""Unidirectional Transformer++ on single TrEMBL sequences: the strong baseline of PolySketchFormer, for proteins.

From the paper: sinusoidal positions and rotary ones in every head, GLU with GELU and expansion 4, AdamW, a peak
learning rate of 7e-4 (appendix I); 12 layers, 12 heads of 64 and 125k steps (section 4, appendix H); betas, a warm-up
of a tenth of the steps, then linear decay (appendix G). The paper's size (appendix H: 110M with 32,000 words) agrees
with an output that is tied to the embeddings, as here, but with feed-forward parts of 8 width^2 parameters; expansion
4, as we read it, has 12 width^2. Our choices, which the paper does not give: pre-norm, no dropout, clip 1, weight decay
0.1. TrEMBL, its 1,024 tokens and the batch size are ours too; 512 x 1,024 is the paper's 0.5M tokens.
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
            max_length=1024,
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
        batches=BatchesConfig(form="single", length=1024, batch_size=512, buckets=(256, 512, 1024)),
        num_steps=125_000,
    )
