"""The config of an experiment as frozen dataclasses: `Config`, and the parts that no other module has.

ModelConfig, BatchesConfig and the configs of attention mechanisms stand beside the code that they configure.
"""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from proteinlm import alphabet
from proteinlm.config.json_codec import from_plain, to_plain
from proteinlm.data.batches.batches import BatchesConfig
from proteinlm.errors import InputError, check_range
from proteinlm.models.objective import ObjectiveConfig
from proteinlm.models.transformer import ModelConfig

VOCAB_SIZE = alphabet.SIZE


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with clipping; the defaults are the Performer paper's (appendix on protein models).

    Attributes:
        schedule: "constant" (the paper), "linear" or "cosine" decay to `final_fraction` of the rate at the last step,
            each after `warmup_steps` of linear warm-up from 0.
        weight_decay: decoupled, on matrices and embeddings; biases and normalisation scales are left alone.
        clip: limit of the gradient's global norm; 0 switches clipping off.
    """

    learning_rate: float = 1e-3
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    final_fraction: float = 0.0
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.1
    clip: float = 0.5

    def __post_init__(self):
        for name in ("learning_rate", "eps"):
            check_range(f"optimizer.{name}", getattr(self, name), above=0)
        for name in ("b1", "b2"):
            check_range(f"optimizer.{name}", getattr(self, name), at_least=0, below=1)
        for name in ("warmup_steps", "weight_decay", "clip", "final_fraction"):
            check_range(f"optimizer.{name}", getattr(self, name), at_least=0)


@dataclass(frozen=True)
class MeshConfig:
    """How devices share the work: a grid of data x fsdp x tensor x sequence devices; -1 is what the others leave.

    Attributes:
        data: the rows of a batch are split; every device has the whole state.
        fsdp: rows are split here too, and with them parameters and optimizer state, gathered layer by layer.
        tensor: heads and the feed-forward part's width are split.
        sequence: the places of a row are split; see docs/training.md.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1

    def __post_init__(self):
        sizes = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, size in sizes.items():
            if size < 1 and size != -1:
                raise InputError(f"mesh.{name} is {size}; it must be at least 1, or -1 for what the others leave.")
        if list(sizes.values()).count(-1) > 1:
            names = " and ".join(f"mesh.{name}" for name, size in sizes.items() if size == -1)
            raise InputError(f"{names} are -1; one axis alone can be what the others leave.")


@dataclass(frozen=True)
class Config:
    """One experiment.

    Attributes:
        num_steps: optimizer steps in all.
        eval_every: steps between evaluations on valid; 0 means at the end alone.
        eval_examples: sequences (or windows) of valid in each of these, a random sample that stays the same; 0 means
            all of valid. The evaluation at the end always takes all.
        checkpoint_every: steps between checkpoints; one is always written at the end and on SIGTERM or Ctrl-C.
        keep_checkpoints: how many of the newest are kept.
        keep_best: how many more are kept, those with the lowest loss on valid. An evaluation that is among them is
            followed by a checkpoint. (Of the one at the end, the part on the sample of the others is compared.)
        log_every: steps between lines of metrics.jsonl.
        redraw_every: steps between redraws of random features; 0 means never.
        redraw_growth: each interval between redraws is so many times the one before; 1 keeps them equal.
        skip_bad_steps: how many steps in a row may have a loss or gradient that is not finite: such a step leaves
            parameters and optimizer as they were and is recorded. One more ends the run.
        mesh: how devices share the work.
        accumulate: parts that a batch is computed in, one after another, for less memory. Their sums are added, so that
            a step is what it is with 1, but for rounding and for dropout, which draws by part.
        seed: of initial parameters, dropout, masks and random features (`batches.seed` orders the data).
    """

    model: ModelConfig = field(default_factory=lambda: ModelConfig(vocab_size=VOCAB_SIZE))
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = OptimizerConfig()
    batches: BatchesConfig = field(default_factory=BatchesConfig)
    num_steps: int = 100_000
    eval_every: int = 1_000
    eval_examples: int = 1_000
    checkpoint_every: int = 1_000
    keep_checkpoints: int = 3
    log_every: int = 20
    redraw_every: int = 1_000
    seed: int = 0
    mesh: MeshConfig = MeshConfig()
    accumulate: int = 1
    keep_best: int = 1
    redraw_growth: float = 1.0
    skip_bad_steps: int = 0

    def __post_init__(self):
        _refuse_infinite(self, "")
        if self.model.vocab_size != VOCAB_SIZE:
            raise InputError(f"model.vocab_size is {self.model.vocab_size}; the alphabet has {VOCAB_SIZE} tokens.")
        if self.batches.length > self.model.max_length:
            raise InputError(
                f"batches.length is {self.batches.length} but the model has positions for {self.model.max_length} "
                "tokens: raise model.max_length or shorten batches.length."
            )
        attention = self.model.attention
        if self.causal and attention.no_causal:
            raise InputError(
                f'objective.kind is "causal", but {attention.kind} attention has no causal form: {attention.no_causal}'
            )
        if self.batches.form == "isolated" and attention.no_segments:
            raise InputError(
                f'batches.form is "isolated", but {attention.kind} attention takes no segments: '
                f"{attention.no_segments}."
            )
        for name in ("num_steps", "checkpoint_every", "keep_checkpoints", "log_every", "accumulate", "redraw_growth"):
            check_range(name, getattr(self, name), at_least=1)
        for name in ("eval_every", "eval_examples", "redraw_every", "seed", "keep_best", "skip_bad_steps"):
            check_range(name, getattr(self, name), at_least=0)
        if self.batches.batch_size % self.accumulate:
            raise InputError(
                f"accumulate is {self.accumulate}, which does not divide batches.batch_size, {self.batches.batch_size}."
            )

    @property
    def causal(self) -> bool:
        """Whether attention looks back only."""
        return self.objective.kind == "causal"

    def to_json(self) -> str:
        """Return every field as indented JSON; a mechanism says its name under "kind"."""
        return json.dumps(to_plain(self), indent=2)

    @classmethod
    def from_json(cls, text: str, source: str = "the config") -> "Config":
        """Read what `to_json` wrote, strictly.

        Args:
            text: JSON.
            source: how to name it in an error, usually the file.

        Raises:
            InputError: not JSON, an unknown or a missing key, a value of the wrong type.
        """
        try:
            plain = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"{source} is not JSON: {error}.") from error
        return from_plain(cls, plain, source)


def _refuse_infinite(config: Any, path: str) -> None:
    """Refuse numbers that are not finite, in a config and in those inside it; `path` is what stands before a name."""
    for field_ in dataclasses.fields(config):
        value = getattr(config, field_.name)
        if dataclasses.is_dataclass(value):
            _refuse_infinite(value, f"{path}{field_.name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{path}{field_.name} is {value}; it must be a finite number.")
