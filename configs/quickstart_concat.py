"""A small causal Performer-ReLU on concatenated proteins, in windows of 1,024 tokens: a short example run."""

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
            max_length=1024,
            dropout=0.0,
            attention=GeneralizedConfig(num_features=64, chunk_size=64),
        ),
        objective=ObjectiveConfig(kind="causal"),
        optimizer=OptimizerConfig(learning_rate=4e-3, schedule="cosine", warmup_steps=10),
        batches=BatchesConfig(form="concat", length=1024, batch_size=4),
        num_steps=40,
        eval_every=20,
        eval_examples=16,
        checkpoint_every=20,
        log_every=5,
    )
