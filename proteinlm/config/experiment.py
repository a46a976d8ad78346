"""The whole of an experiment as frozen dataclasses: composed here, JSON out, JSON in, unknown keys refused.

A file configs/NAME.py has `get_config() -> Config`. The parts that belong to a module stand beside its code
(ModelConfig, BatchesConfig, the attention mechanisms); the others are here.
"""

import dataclasses
import difflib
import importlib.util
import json
import math
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from proteinlm import alphabet
from proteinlm.data.batches.batches import BatchesConfig
from proteinlm.errors import InputError
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

VOCAB_SIZE = alphabet.SIZE
# A field that runs saved before it existed do not have; its default is what they did.
_LATER: dict[str, Any] = {"metadata": {"default_when_absent": True}}

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
]


def _refuse_infinite(config: Any, path: str) -> None:
    """Refuse numbers that are not finite, in a config and in those inside it; `path` is what stands before a name."""
    for field_ in dataclasses.fields(config):
        value = getattr(config, field_.name)
        if dataclasses.is_dataclass(value):
            _refuse_infinite(value, f"{path}{field_.name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{path}{field_.name} is {value}; it must be a finite number.")


@dataclass(frozen=True)
class ObjectiveConfig:
    """What the model is trained to say.

    Attributes:
        kind: "causal" (each token from those before it; loss on residues and eos) or "masked" (BERT; loss on the
            selected residues). It also decides whether attention is causal.
        mask_fraction: masked only: the share of a sequence's residues that are selected.
        mask_token: share of the selected residues replaced by <mask>.
        random_token: share replaced by a random standard residue; the rest stay as they are.
    """

    kind: Literal["causal", "masked"] = "causal"
    mask_fraction: float = 0.15
    mask_token: float = 0.8
    random_token: float = 0.1

    def __post_init__(self):
        _refuse_infinite(self, "objective.")
        if not 0 < self.mask_fraction <= 1:
            raise InputError(f"objective.mask_fraction is {self.mask_fraction}; it must be above 0 and at most 1.")
        if min(self.mask_token, self.random_token) < 0 or self.mask_token + self.random_token > 1 + 1e-9:
            raise InputError(
                f"objective.mask_token {self.mask_token} and objective.random_token {self.random_token} are shares of "
                "the selected residues: neither below 0, together at most 1."
            )


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
        _refuse_infinite(self, "optimizer.")
        for name in ("learning_rate", "eps"):
            if not getattr(self, name) > 0:
                raise InputError(f"optimizer.{name} is {getattr(self, name)}; it must be above 0.")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"optimizer.{name} is {getattr(self, name)}; it must be at least 0 and below 1.")
        for name in ("warmup_steps", "weight_decay", "clip", "final_fraction"):
            if not getattr(self, name) >= 0:
                raise InputError(f"optimizer.{name} is {getattr(self, name)}; it cannot be below 0.")


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
    objective: ObjectiveConfig = ObjectiveConfig()
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
    mesh: MeshConfig = field(default=MeshConfig(), **_LATER)
    accumulate: int = field(default=1, **_LATER)
    keep_best: int = field(default=1, **_LATER)
    redraw_growth: float = field(default=1.0, **_LATER)
    skip_bad_steps: int = field(default=0, **_LATER)

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
        for name in ("num_steps", "checkpoint_every", "keep_checkpoints", "log_every", "accumulate"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not self.redraw_growth >= 1:
            raise InputError(f"redraw_growth is {self.redraw_growth}; it must be at least 1.")
        for name in ("eval_every", "eval_examples", "redraw_every", "seed", "keep_best", "skip_bad_steps"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; it cannot be below 0.")
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
        return json.dumps(_to_plain(self), indent=2)

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
        return _from_plain(cls, plain, source, "")


def _to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        plain = {f.name: _to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": kind.kind, **plain} if _is_mechanism(kind) else plain
    return list(value) if isinstance(value, tuple) else value


def _is_mechanism(kind: type) -> bool:
    return isinstance(getattr(kind, "kind", None), str) and "kind" not in {f.name for f in dataclasses.fields(kind)}


def _from_plain(expected: Any, value: Any, source: str, path: str) -> Any:
    """Build a value of the type `expected` from JSON's types, or say what is wrong at which path."""
    where = f"{source}: {path or 'the config'}"
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType) and type(None) in arguments:
        (expected,) = (option for option in arguments if option is not type(None))
        return None if value is None else _from_plain(expected, value, source, path)
    if origin in (typing.Union, types.UnionType):
        kinds = {option.kind: option for option in arguments}
        if not isinstance(value, dict) or value.get("kind") not in kinds:
            found = value.get("kind") if isinstance(value, dict) else value
            raise InputError(f'{where} needs a "kind" among {", ".join(sorted(kinds))}; found {found!r}.')
        return _from_plain(kinds[value["kind"]], value, source, path)
    if dataclasses.is_dataclass(expected):
        return _dataclass_from_plain(expected, value, source, path)
    if origin is Literal:
        if value not in arguments:
            raise InputError(f"{where} is {value!r}; it must be one of {', '.join(map(repr, arguments))}.")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise InputError(f"{where} is {value!r}; it must be a list.")
        return tuple(_from_plain(arguments[0], item, source, f"{path}[{i}]") for i, item in enumerate(value))
    if expected is float and type(value) is int:
        return float(value)
    if type(value) is not expected:
        raise InputError(f"{where} is {value!r}; it must be {expected.__name__}.")
    return value


def _dataclass_from_plain(expected: Any, value: Any, source: str, path: str) -> Any:
    where = f"{source}: {path or 'the config'}"
    if not isinstance(value, dict):
        raise InputError(f"{where} is {value!r}; it must be an object with fields.")
    value = {key: item for key, item in value.items() if key != "kind" or not _is_mechanism(expected)}
    hints = typing.get_type_hints(expected)
    fields = {f.name: f for f in dataclasses.fields(expected)}
    names = list(fields)
    for key in value:
        if key not in names:
            close = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the fields are {', '.join(names)}."
            raise InputError(f"{where} has no field {key!r}; {hint}")
    # Fields that came later have a default that says what the program did before; it may be left out.
    missing = [name for name in names if name not in value and not fields[name].metadata.get("default_when_absent")]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}.")
    prefix = f"{path}." if path else ""
    for name, known in fields.items():
        for old, new in known.metadata.get("formerly", {}).items():
            # By identity: 1 equals True.
            if value.get(name) is old:
                value[name] = new
    given = [name for name in names if name in value]
    return expected(**{name: _from_plain(hints[name], value[name], source, prefix + name) for name in given})


def _config_folders() -> list[Path]:
    package = Path(__file__).parents[1]
    # An installed package carries the experiments inside; a checkout has them beside it.
    return [package / "configs", package.parent / "configs"]


def named_configs() -> list[str]:
    """Return the names of the experiments that come with proteinlm, sorted."""
    return sorted({file.stem for folder in _config_folders() for file in folder.glob("[!_]*.py")})


def _nearest_field(message: str, module: Any) -> str:
    """Return a hint for Python's sentence about a misspelt field of a dataclass."""
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", message)
    kind = getattr(module, found[1], None) if found else None
    if not found or not dataclasses.is_dataclass(kind):
        return ""
    close = difflib.get_close_matches(found[2], [f.name for f in dataclasses.fields(kind)], 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def load_config(name: str) -> Config:
    """Return the experiment of a file (.py with `get_config()`, or .json), or of a name such as "quickstart_causal".

    Raises:
        InputError: no such file or name (the nearest one is named), or the file does not give a Config.
    """
    path = Path(name)
    if not path.is_file():
        stem = path.stem if path.suffix == ".py" else name
        inside = [folder / f"{stem}.py" for folder in _config_folders()]
        found = [file for file in inside if file.is_file()]
        if not found or path.parent not in (Path("."), Path("configs")):
            close = difflib.get_close_matches(stem, named_configs(), 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(named_configs())}."
            raise InputError(f"there is no config file or name {name!r}; {hint}")
        path = found[0]
    if path.suffix == ".json":
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not JSON: it is not text in UTF-8 ({error}).") from error
        return Config.from_json(text, str(path))
    spec = importlib.util.spec_from_file_location(f"proteinlm_config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is neither a Python file (.py) nor JSON (.json).")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except TypeError as error:
        raise InputError(f"{path}: {error}{_nearest_field(str(error), module)}") from error
    except Exception as error:
        # A file of the user's own: whatever Python meets in it is theirs to mend.
        kind = type(error).__name__
        raise InputError(f"{path} cannot be read as a config with get_config(): {kind}: {error}") from error
    if not isinstance(config, Config):
        raise InputError(f"{path}: get_config() returned {type(config).__name__}, not a proteinlm Config.")
    # Python lets a field have any type; JSON's reader does not.
    return Config.from_json(config.to_json(), str(path))
