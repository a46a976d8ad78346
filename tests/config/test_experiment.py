import dataclasses

import pytest

from proteinlm.config import (
    BatchesConfig,
    Config,
    LinformerConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PolynomialConfig,
    SoftmaxConfig,
)
from proteinlm.errors import InputError


def with_attention(attention):
    config = Config(objective=ObjectiveConfig(kind="masked" if attention.no_causal else "causal"))
    return dataclasses.replace(config, model=dataclasses.replace(config.model, attention=attention))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Config(model=ModelConfig(vocab_size=7)), "29"),
        (lambda: dataclasses.replace(Config(), num_steps=0), "num_steps"),
        (lambda: dataclasses.replace(Config(), eval_every=-1), "eval_every"),
        (lambda: OptimizerConfig(learning_rate=0.0), "learning_rate"),
        (lambda: OptimizerConfig(clip=-1.0), "clip"),
        (lambda: OptimizerConfig(clip=float("nan")), "clip"),
        (lambda: OptimizerConfig(b1=1.5), "b1"),
        (lambda: OptimizerConfig(eps=0.0), "eps"),
        (lambda: OptimizerConfig(final_fraction=float("inf")), "optimizer.final_fraction is inf; .* a finite number"),
        (lambda: OptimizerConfig(learning_rate=float("inf")), "optimizer.learning_rate is inf; .* a finite number"),
        (lambda: OptimizerConfig(weight_decay=float("nan")), "optimizer.weight_decay is nan; .* a finite number"),
        (lambda: Config(redraw_growth=float("inf")), "redraw_growth is inf; .* a finite number"),
        (lambda: with_attention(PolynomialConfig(beta=float("nan"))), r"attention\.beta is nan; .* a finite number"),
        (lambda: dataclasses.replace(Config(), seed=-1), "seed"),
        (lambda: ModelConfig(vocab_size=29, embed_dim=10, num_heads=3), "num_heads"),
    ],
)
def test_values_that_cannot_be_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_windows_longer_than_the_positions_are_refused():
    config = Config()
    model = dataclasses.replace(config.model, max_length=100)
    with pytest.raises(InputError, match=r"batches\.length is 1024, .* 100"):
        dataclasses.replace(config, model=model)


def test_a_causal_objective_needs_a_mechanism_with_a_causal_form():
    model = dataclasses.replace(Config().model, attention=LinformerConfig())
    with pytest.raises(InputError, match=r'objective.kind is "causal", but linformer attention has no causal form: '):
        Config(model=model)
    assert not Config(model=model, objective=ObjectiveConfig(kind="masked")).causal


def test_isolated_rows_need_a_mechanism_that_takes_segments():
    isolated = BatchesConfig(form="isolated")
    assert Config(batches=isolated).batches.form == "isolated"
    for attention, words in (
        (
            LinformerConfig(),
            "linformer attention takes no segments: every protein would need .* take batches.form single",
        ),
        (SoftmaxConfig(implementation="cudnn"), "softmax attention takes no segments: .* auto or blocks"),
    ):
        model = dataclasses.replace(Config().model, attention=attention)
        with pytest.raises(InputError, match=f'batches.form is "isolated", but {words}'):
            Config(model=model, objective=ObjectiveConfig(kind="masked"), batches=isolated)


def test_parts_divide_a_batch():
    with pytest.raises(InputError, match="accumulate is 3, which does not divide batches.batch_size, 8"):
        Config(accumulate=3)
