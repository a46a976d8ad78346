"""Causal and masked language modelling: inputs, targets and weights of a batch; sums of log-likelihoods of its tokens.

All functions are plain JAX on arrays of fixed shape: they run inside jax.jit, on the device, with the config static.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from proteinlm import alphabet
from proteinlm.errors import InputError, check_range
from proteinlm.models.objective_segments import draws_in_segments
from proteinlm.models.positions import positions_in


@dataclass(frozen=True)
class ObjectiveConfig:
    """The training objective.

    Attributes:
        kind: "causal" (predict each token from those before it; loss on residues and <eos>) or "masked" (BERT; loss on
            the selected residues). It also decides whether attention is causal.
        mask_fraction: masked only: fraction of a sequence's residues that are selected.
        mask_token: fraction of the selected residues that are replaced by <mask>.
        random_token: fraction of the selected residues that are replaced by a random standard residue; the others stay.
    """

    kind: Literal["causal", "masked"] = "causal"
    mask_fraction: float = 0.15
    mask_token: float = 0.8
    random_token: float = 0.1

    def __post_init__(self):
        check_range("objective.mask_fraction", self.mask_fraction, above=0, at_most=1)
        check_range("objective.mask_token", self.mask_token, at_least=0)
        check_range("objective.random_token", self.random_token, at_least=0)
        if self.mask_token + self.random_token > 1 + 1e-9:
            raise InputError(
                f"objective.mask_token {self.mask_token} and objective.random_token {self.random_token} are fractions "
                "of the selected residues; together they must be at most 1."
            )


class Example(NamedTuple):
    """Inputs and targets of a model.

    Attributes:
        inputs: int32 [B, L], <pad> wherever the tokens are <pad>: the model derives its padding mask from them.
        targets: int32 [B, L], the tokens.
        weights: float32 [B, L], 1 where the loss counts, else 0.
    """

    inputs: Array
    targets: Array
    weights: Array


class TokenValues(NamedTuple):
    """Values of each token, float32 [B, L].

    Attributes:
        nll: negative log likelihood of the target, in nats.
        correct: 1 if the target has the largest logit, else 0.
        confidence: probability of the token that has the largest logit.
    """

    nll: Array
    correct: Array
    confidence: Array


class TokenSums(NamedTuple):
    """Sums over the tokens of each row, float32 [B], or of each segment, [B, S].

    Attributes:
        nll: negative log likelihood of the targets, in nats.
        correct: number of targets that have the largest logit.
        count: number of targets that count.
    """

    nll: Array
    correct: Array
    count: Array


def causal_example(tokens: Array, segments: Array | None = None) -> Example:
    """Return the example in which each token is predicted from those before it; inputs begin with <bos>.

    Args:
        tokens: integer [B, L], residues and perhaps <eos>, padded on the right.
        segments: int32 [B, L], the protein of its row that a token belongs to, 0 at padding; the inputs of each protein
            begin with <bos>.

    Returns:
        Example with weights 1 on residues and <eos>, 0 on padding.
    """
    targets = _as_ids(tokens)
    is_token = targets != alphabet.PAD
    shifted = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=alphabet.BOS)
    if segments is not None:
        shifted = jnp.where(positions_in(segments) == 0, alphabet.BOS, shifted)
    return Example(jnp.where(is_token, shifted, alphabet.PAD), targets, is_token.astype(jnp.float32))


def masked_example(
    tokens: Array,
    keys: Array,
    config: ObjectiveConfig,
    key: Array,
    step: Array | int | None = None,
    segments: Array | None = None,
) -> Example:
    """Return the example in which selected residues are predicted (BERT, Devlin et al. 2019, section 3.1).

    Exactly round(mask_fraction n) of a row's n residues are selected (half to even, in float32), at least one if
    n >= 1. <eos> and padding are never selected. Each selected residue, independently, is replaced by <mask> with
    probability mask_token, is replaced by a random residue with probability random_token, or stays. A random residue is
    one of the 20 standard ones, each with probability 1/20 (the true one included). B Z X O U are left out: they are so
    rare in proteins that the model would recognise them as replacements.

    The mask of a row is a function of (key, step, its keys, its tokens). The other rows, the row's index in the batch
    and the padded length do not change it. This needs random bits whose first L do not depend on L, as JAX's threefry
    gives by default (jax_threefry_partitionable).

    Args:
        tokens: integer [B, L].
        keys: uint32 [B, 2], digests of the rows' content.
        config: fractions.
        key: a JAX random key.
        step: training step, so that masks differ between epochs; None in evaluation, where masks never change.
        segments: int32 [B, L], the protein of its row that a token belongs to, 0 at padding. Then the keys are
            [B, S, 2], and every protein has the mask that it has alone in a row, wherever it is packed.

    Returns:
        Example with weights 1 on the selected residues, else 0.
    """
    targets = _as_ids(tokens)
    is_residue = targets >= alphabet.FIRST_RESIDUE
    if step is not None:
        key = jax.random.fold_in(key, step)

    def row(content: Array, is_residue: Array) -> tuple[Array, Array, Array]:
        row_key = jax.random.fold_in(jax.random.fold_in(key, content[0]), content[1])
        rank_key, action_key, residue_key = jax.random.split(row_key, 3)
        shape = is_residue.shape
        # 31 random bits for residues, 32 ones for other tokens, which therefore come last.
        bits = jnp.where(is_residue, jax.random.bits(rank_key, shape, jnp.uint32) >> 1, jnp.uint32(0xFFFFFFFF))
        rank = jnp.argsort(jnp.argsort(bits))
        count = is_residue.sum(dtype=jnp.float32)
        selected = rank < jnp.minimum(jnp.maximum(jnp.round(config.mask_fraction * count), 1), count)
        action = jax.random.uniform(action_key, shape)
        first = alphabet.FIRST_RESIDUE
        residues = jax.random.randint(residue_key, shape, first, first + alphabet.NUM_STANDARD, jnp.int32)
        return selected, action, residues

    if segments is None:
        selected, action, residues = jax.vmap(row)(keys, is_residue)
    else:
        of_row = partial(draws_in_segments, key, config.mask_fraction)
        selected, action, residues = jax.vmap(of_row)(keys, is_residue, segments)
    replaced = jnp.where(
        action < config.mask_token,
        alphabet.MASK,
        jnp.where(action < config.mask_token + config.random_token, residues, targets),
    )
    return Example(jnp.where(selected, replaced, targets), targets, selected.astype(jnp.float32))


def make_example(
    tokens: Array,
    keys: Array,
    config: ObjectiveConfig,
    key: Array,
    step: Array | int | None = None,
    segments: Array | None = None,
) -> Example:
    """Return the example of the config's objective; arguments as for `masked_example`."""
    if config.kind == "causal":
        return causal_example(tokens, segments)
    return masked_example(tokens, keys, config, key, step, segments)


def residue_weights(targets: Array, weights: Array) -> Array:
    """Return the weights, float32 [B, L], with 0 where the target is not a residue (<eos>)."""
    return jnp.where(targets >= alphabet.FIRST_RESIDUE, weights, 0.0)


def token_values(logits: Array, targets: Array) -> TokenValues:
    """Return the values of each token.

    Args:
        logits: [B, L, V], any float dtype; the log-softmax, over the whole alphabet, is float32.
        targets: int32 [B, L].
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    nll = -jnp.take_along_axis(log_probs, targets[:, :, None], axis=-1)[:, :, 0]
    correct = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
    return TokenValues(nll, correct, jnp.exp(log_probs.max(axis=-1)))


def token_sums(logits: Array, targets: Array, weights: Array, segments: Array | None = None) -> TokenSums:
    """Return sums over the tokens of each row, or of each segment; for training, evaluation and scoring.

    Args:
        logits: [B, L, V], as for `token_values`.
        targets: int32 [B, L].
        weights: float32 [B, L].
        segments: int32 [B, L], 1 to S = L // 2, 0 at padding. Then the sums are [B, S]; entry n - 1 is segment n.
    """
    nll, correct, _ = token_values(logits, targets)
    return TokenSums(*(sum_tokens(x, segments) for x in (nll * weights, correct * weights, weights)))


def sum_tokens(x: Array, segments: Array | None) -> Array:
    """Return sums of x [B, L, ...] over the tokens of each row, [B, ...], or of each segment, [B, L // 2, ...]."""
    if segments is None:
        return x.sum(1)
    return jax.vmap(lambda x, s: jax.ops.segment_sum(x, s, x.shape[0] // 2 + 1)[1:])(x, segments)


def mean_loss(sums: TokenSums) -> Array:
    """Return the mean negative log likelihood of the batch's counted tokens, in nats; 0 if there are none."""
    return sums.nll.sum() / jnp.maximum(sums.count.sum(), 1.0)


def _as_ids(tokens: Array) -> Array:
    # Batches are uint8, in which sums and comparisons with -1 go wrong silently.
    if tokens.ndim != 2:
        raise ValueError(f"tokens has shape {tokens.shape}; expected [B, L]")
    return jnp.asarray(tokens).astype(jnp.int32)
