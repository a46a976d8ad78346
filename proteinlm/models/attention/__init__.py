"""Attention mechanisms: one file each, one contract (base.py), one line each here."""

from proteinlm.models.attention.base import Attention, Projection
from proteinlm.models.attention.favor import FavorConfig
from proteinlm.models.attention.generalized import GeneralizedConfig
from proteinlm.models.attention.identity import IdentityConfig
from proteinlm.models.attention.polysketch import PolySketchConfig
from proteinlm.models.attention.softmax import SoftmaxConfig

AttentionConfig = SoftmaxConfig | FavorConfig | GeneralizedConfig | IdentityConfig | PolySketchConfig

ATTENTION: dict[str, type] = {
    config.kind: config
    for config in (
        SoftmaxConfig,
        FavorConfig,
        GeneralizedConfig,
        IdentityConfig,
        PolySketchConfig,
    )
}

__all__ = [
    "ATTENTION",
    "Attention",
    "AttentionConfig",
    "FavorConfig",
    "GeneralizedConfig",
    "IdentityConfig",
    "PolySketchConfig",
    "Projection",
    "SoftmaxConfig",
]
