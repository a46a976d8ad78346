"""The config of an experiment as frozen dataclasses: `Config`, and the parts that no other module has.

ModelConfig, BatchesConfig and the configs of attention mechanisms stand beside the code that they configure.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Literal

from proteinlm import alphabet
from proteinlm.config.json_codec import from_plain, to_plain
from proteinlm.data.batches.batches import BatchesConfig
from proteinlm.errors import InputError, check_range
from proteinlm.models.config import ModelConfig
from proteinlm.models.objective import ObjectiveConfig

VOCAB_SIZE = alphabet.SIZE


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with gradient clipping; the defaults are those of the Performer paper (appendix on protein models).

    Attributes:
        learning_rate: rate after the warm-up.
        schedule: "constant" (the paper), or "linear" or "cosine" decay to `final_fraction` of the rate at the last
            step; each starts after the warm-up.
        warmup_steps: number of steps of linear warm-up from 0.
        final_fraction: learning rate at the last step, as a fraction of `learning_rate`.
        b1: decay of Adam's first moment.
        b2: decay of Adam's second moment.
        eps: Adam's epsilon.
        weight_decay: decoupled weight decay of matrices and embeddings; biases and normalisation scales have none.
        clip: largest global norm of the gradient; 0 switches clipping off.
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
    """Sizes of the device mesh, data x fsdp x tensor x sequence; -1 takes all devices that the other axes leave.

    Attributes:
        data: splits the rows of a batch; every device holds the whole state.
        fsdp: splits the rows too, and also parameters and optimizer state, which are gathered layer by layer.
        tensor: splits the heads and the width of the feed-forward part.
        sequence: splits the tokens of a row; see docs/training.md.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1

    def __post_init__(self):
        sizes = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, size in sizes.items():
            if size < 1 and size != -1:
                raise InputError(f"mesh.{name} is {size}; it must be at least 1, or -1 for all devices that are left.")
        if list(sizes.values()).count(-1) > 1:
            names = " and ".join(f"mesh.{name}" for name, size in sizes.items() if size == -1)
            raise InputError(f"{names} are -1; only one axis can take the devices that are left.")


@dataclass(frozen=True)
class Config:
    """Every option of one experiment.

    Attributes:
        model: sizes, attention mechanism and numerical precision of the model.
        objective: causal or masked language modelling.
        optimizer: AdamW, its learning rate and schedule.
        batches: form, length and number of the rows of a batch.
        num_steps: total number of optimizer steps.
        eval_every: number of steps between evaluations on valid; 0 evaluates only at the end.
        eval_examples: number of sequences (or windows) of valid in such an evaluation, always the same random sample; 0
            takes all of valid. The evaluation at the end always takes all.
        checkpoint_every: number of steps between checkpoints. The end and SIGTERM or Ctrl-C always write one.
        keep_checkpoints: number of newest checkpoints that are kept.
        keep_best: number of further checkpoints that are kept, those with the lowest loss on valid. An evaluation among
            the best is followed by a checkpoint. (At the end, only the loss on the sample is compared.)
        log_every: number of steps between lines of metrics.jsonl.
        redraw_every: number of steps between redraws of random features; 0 never redraws.
        redraw_growth: factor by which each interval between redraws is longer than the one before; 1 keeps it constant.
        skip_bad_steps: number of steps in a row that may have a NaN or infinite loss or gradient. Such a step changes
            neither parameters nor optimizer, and is logged. One more ends the run.
        mesh: sizes of the device mesh.
        accumulate: number of parts of a batch that are computed one after another, to save memory. Their gradients are
            added, so that a step equals that of accumulate 1, except for rounding and for dropout, which is drawn by
            part.
        seed: seed of initial parameters, dropout, masks and random features; `batches.seed` is that of the data order.
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
        if self.model.vocab_size != VOCAB_SIZE:
            raise InputError(f"model.vocab_size is {self.model.vocab_size}; the alphabet has {VOCAB_SIZE} tokens.")
        if self.batches.length > self.model.max_length:
            raise InputError(
                f"batches.length is {self.batches.length}, but model.max_length is {self.model.max_length}: raise "
                "model.max_length or shorten batches.length."
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
        """Whether attention is causal: no token sees a later one."""
        return self.objective.kind == "causal"

    def to_json(self) -> str:
        """Return every field as indented JSON; an attention mechanism has its name under "kind"."""
        return json.dumps(to_plain(self), indent=2)

    @classmethod
    def from_json(cls, text: str, source: str = "the config") -> "Config":
        """Read the JSON of `to_json`; every field must be there.

        Args:
            text: JSON.
            source: name of the file in errors.

        Raises:
            InputError: not JSON, an unknown or a missing key, a value of the wrong type.
        """
        try:
            plain = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"{source} is not JSON: {error}.") from error
        return from_plain(cls, plain, source)
