"""The config of an experiment: `Config` and its parts, reading and writing it, and the small scale.

The configs of all attention mechanisms are names of this package too.
"""

from proteinlm.config.experiment import VOCAB_SIZE, Config, MeshConfig, OptimizerConfig
from proteinlm.config.named import load_config, named_configs
from proteinlm.data.batches.batches import BatchesConfig
from proteinlm.models import attention
from proteinlm.models.attention import *  # noqa: F403 (the names of its __all__)
from proteinlm.models.config import ModelConfig
from proteinlm.models.objective import ObjectiveConfig

__all__ = [
    "VOCAB_SIZE",
    "BatchesConfig",
    "Config",
    "MeshConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "load_config",
    "named_configs",
]
__all__ += attention.__all__
