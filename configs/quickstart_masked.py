"""A small masked Performer-ReLU on the packaged sample, with the size of quickstart_causal and fewer steps."""

from proteinlm.config import (
    VOCAB_SIZE,
    BatchesConfig,
    Config,
    GeneralizedConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
)


def get_config() -> Config:
    """Return the config."""
    return Config(
        model=ModelConfig(
            vocab_size=VOCAB_SIZE,
            num_layers=2,
            num_heads=4,
            embed_dim=128,
            mlp_dim=512,
            max_length=256,
            dropout=0.0,
            attention=GeneralizedConfig(num_features=64, chunk_size=64),
        ),
        objective=ObjectiveConfig(kind="masked"),
        optimizer=OptimizerConfig(learning_rate=4e-3, schedule="cosine", warmup_steps=50),
        batches=BatchesConfig(form="single", length=256, batch_size=32),
        num_steps=100,
        eval_every=25,
        eval_examples=256,
        checkpoint_every=50,
        log_every=10,
    )
