"""`ModelConfig`: the sizes and options of a model."""

from dataclasses import dataclass, field
from typing import Literal, get_args, get_type_hints

from proteinlm.errors import InputError, check_range
from proteinlm.models.attention import FavorConfig, MechanismConfig


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a model; the defaults are the Performer paper's regular model (6 layers, 8 heads, 512, MLP 2048).

    Attributes:
        vocab_size: V, number of tokens of the alphabet.
        num_layers: N, number of layers.
        num_heads: H, number of heads in each layer; it must divide embed_dim.
        embed_dim: F, the width.
        mlp_dim: width inside the feed-forward part. The default is 4 times the default embed_dim, for GEGLU too (the
            "expansion factor of 4" of PolySketchFormer, appendix I), which then has 1.5 times the parameters.
        max_length: longest input, for every kind of positions; number of learned positions.
        dropout: fraction of the outputs of embeddings, attention and feed-forward part that is set to 0 in training.
        attention: the mechanism and its settings.
        dtype: dtype of activations and matrix products; parameters, normalisation, attention sums, logits are float32.
        remat: what the backward pass computes again, layer by layer: "none"; "dots": everything but products with
            parameters, which are kept; "full": everything; only the input of each layer is kept.
        positions: "learned" or "sinusoidal": vectors are added to the embeddings; "rotary": queries and keys of every
            head are rotated by their positions; "sinusoidal_rotary": both (Transformer++ of PolySketchFormer, app. I).
        feed_forward: "gelu": down(gelu(up(x))); "geglu": down(gelu(gate(x)) * up(x)) (Shazeer 2020), mlp_dim wide each.
        norm: "pre": x + f(norm(x)) and a norm after the last layer; "post": norm(x + f(x)) (Vaswani et al. 2017).
        tied_output: logits are products with the embeddings, plus a bias, as in BERT and ESM; otherwise a linear layer
            computes them.
    """

    vocab_size: int
    num_layers: int = 6
    num_heads: int = 8
    embed_dim: int = 512
    mlp_dim: int = 2048
    max_length: int = 1024
    dropout: float = 0.1
    attention: MechanismConfig = field(default_factory=FavorConfig)
    dtype: Literal["float32", "bfloat16"] = "float32"
    remat: Literal["none", "dots", "full"] = "none"
    positions: Literal["learned", "sinusoidal", "rotary", "sinusoidal_rotary"] = "learned"
    feed_forward: Literal["gelu", "geglu"] = "gelu"
    norm: Literal["pre", "post"] = "pre"
    tied_output: bool = False

    def __post_init__(self):
        for name in ("vocab_size", "num_layers", "num_heads", "embed_dim", "mlp_dim", "max_length"):
            check_range(f"model.{name}", getattr(self, name), at_least=1)
        if self.embed_dim % self.num_heads:
            raise InputError(
                f"model.num_heads is {self.num_heads}, which does not divide model.embed_dim, {self.embed_dim}."
            )
        check_range("model.dropout", self.dropout, at_least=0, below=1)
        for name in ("dtype", "remat", "positions", "feed_forward", "norm"):
            options = get_args(get_type_hints(ModelConfig)[name])
            if getattr(self, name) not in options:
                raise InputError(
                    f"model.{name} is {getattr(self, name)!r}; it must be one of {', '.join(map(repr, options))}."
                )
        if self.rotary and self.head_dim % 2:
            raise InputError(
                f"model.positions is {self.positions!r}, which rotates pairs of values, but model.embed_dim / "
                f"model.num_heads is {self.embed_dim} / {self.num_heads} = {self.head_dim}, an odd number."
            )
        longest = getattr(self.attention, "max_length", self.max_length)
        if longest < self.max_length:
            raise InputError(
                f"model.attention.max_length is {longest}, below model.max_length, {self.max_length}: "
                f"{self.attention.kind} attention has no weights for the positions beyond."
            )

    @property
    def head_dim(self) -> int:
        """D, the width of one head."""
        return self.embed_dim // self.num_heads

    @property
    def rotary(self) -> bool:
        """Whether queries and keys are rotated by their positions."""
        return self.positions in ("rotary", "sinusoidal_rotary")
