"""Attention mechanisms: one file each, one contract (base.py), one line each here."""

from proteinlm.models.attention.base import Attention, Projection
from proteinlm.models.attention.favor import FavorConfig
from proteinlm.models.attention.generalized import GeneralizedConfig
from proteinlm.models.attention.identity import IdentityConfig
from proteinlm.models.attention.linformer import LinformerConfig
from proteinlm.models.attention.polynomial import PolynomialConfig
from proteinlm.models.attention.polysketch import PolySketchConfig
from proteinlm.models.attention.reformer import ReformerConfig
from proteinlm.models.attention.softmax import SoftmaxConfig

AttentionConfig = (
    SoftmaxConfig
    | FavorConfig
    | GeneralizedConfig
    | IdentityConfig
    | PolySketchConfig
    | ReformerConfig
    | PolynomialConfig
    | LinformerConfig
)

ATTENTION: dict[str, type] = {
    config.kind: config
    for config in (
        SoftmaxConfig,
        FavorConfig,
        GeneralizedConfig,
        IdentityConfig,
        PolynomialConfig,
        LinformerConfig,
        PolySketchConfig,
        ReformerConfig,
    )
}

__all__ = [
    "ATTENTION",
    "Attention",
    "AttentionConfig",
    "FavorConfig",
    "GeneralizedConfig",
    "IdentityConfig",
    "LinformerConfig",
    "PolySketchConfig",
    "PolynomialConfig",
    "Projection",
    "ReformerConfig",
    "SoftmaxConfig",
]
