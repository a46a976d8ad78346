"""Attention mechanisms: one file each, with a common interface (base.py) and a registry (`register_attention`).

A mechanism of this package is named twice here: where it is imported, which registers it, and in `__all__`, which makes
its config a name of `proteinlm.config` too.
"""

from proteinlm.models.attention.base import ATTENTION, Attention, MechanismConfig, Projection, register_attention
from proteinlm.models.attention.favor import FavorConfig
from proteinlm.models.attention.generalized import GeneralizedConfig
from proteinlm.models.attention.identity import IdentityConfig
from proteinlm.models.attention.linformer import LinformerConfig
from proteinlm.models.attention.polynomial import PolynomialConfig
from proteinlm.models.attention.polysketch import PolySketchConfig
from proteinlm.models.attention.reformer import ReformerConfig
from proteinlm.models.attention.softmax import SoftmaxConfig

__all__ = [
    "ATTENTION",
    "Attention",
    "FavorConfig",
    "GeneralizedConfig",
    "IdentityConfig",
    "LinformerConfig",
    "MechanismConfig",
    "PolySketchConfig",
    "PolynomialConfig",
    "Projection",
    "ReformerConfig",
    "SoftmaxConfig",
    "register_attention",
]
