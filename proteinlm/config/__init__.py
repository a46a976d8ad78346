"""The config of an experiment: `Config` and its parts, reading and writing it, and the small scale."""

from proteinlm.config.experiment import VOCAB_SIZE, Config, MeshConfig, ObjectiveConfig, OptimizerConfig
from proteinlm.config.named import load_config, named_configs
from proteinlm.data.batches.batches import BatchesConfig
from proteinlm.models.attention import (
    FavorConfig,
    GeneralizedConfig,
    IdentityConfig,
    LinformerConfig,
    PolynomialConfig,
    PolySketchConfig,
    ReformerConfig,
    SoftmaxConfig,
)
from proteinlm.models.transformer import ModelConfig

__all__ = [
    "VOCAB_SIZE",
    "BatchesConfig",
    "Config",
    "FavorConfig",
    "GeneralizedConfig",
    "IdentityConfig",
    "LinformerConfig",
    "MeshConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PolySketchConfig",
    "PolynomialConfig",
    "ReformerConfig",
    "SoftmaxConfig",
    "load_config",
    "named_configs",
]
