import dataclasses
import json

import pytest

from proteinlm.config import Config, FavorConfig, GeneralizedConfig, ObjectiveConfig, PolynomialConfig
from proteinlm.errors import InputError
from proteinlm.models.attention import ATTENTION


def with_attention(attention):
    config = Config(objective=ObjectiveConfig(kind="masked" if attention.no_causal else "causal"))
    return dataclasses.replace(config, model=dataclasses.replace(config.model, attention=attention))


@pytest.mark.parametrize(
    "attention",
    [kind() for kind in ATTENTION.values()]
    + [FavorConfig(num_features=7), GeneralizedConfig(function="cos"), PolynomialConfig(beta=2.0)],
    ids=lambda a: a.kind,
)
def test_json_round_trip_keeps_every_field(attention):
    config = with_attention(attention)
    assert Config.from_json(config.to_json()) == config


def broken(change):
    plain = json.loads(Config().to_json())
    change(plain)
    return json.dumps(plain)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["model"].update(num_layer=3), ["model", "num_layer", "did you mean 'num_layers'"]),
        (lambda c: c.update(qqqq=3), ["qqqq", "the fields are"]),
        (lambda c: c["optimizer"].pop("b2"), ["optimizer", "lacks b2"]),
        (lambda c: c["optimizer"].update(b2="0.98"), ["optimizer.b2", "'0.98'", "float"]),
        (lambda c: c["model"].update(num_layers=True), ["model.num_layers", "True", "int"]),
        (lambda c: c["model"].update(num_layers=2.0), ["model.num_layers", "2.0", "int"]),
        (lambda c: c["objective"].update(kind="masc"), ["objective.kind", "'masc'", "'masked'"]),
        (lambda c: c["model"]["attention"].update(kind="magic"), ["model.attention", "magic", "softmax"]),
        (lambda c: c["model"].update(attention=3), ["model.attention", "kind"]),
        (lambda c: c["batches"].update(buckets=3), ["batches.buckets", "list"]),
        (lambda c: c.update(model=3), ["model", "object"]),
    ],
)
def test_reading_is_strict_and_names_the_place(change, words):
    with pytest.raises(InputError) as error:
        Config.from_json(broken(change), "runs/x/config.json")
    assert "runs/x/config.json" in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_not_json_is_said():
    with pytest.raises(InputError, match="is not JSON"):
        Config.from_json("{", "file")


def test_what_remat_never_was_is_refused():
    plain = json.loads(Config().to_json())
    plain["model"]["remat"] = 1
    with pytest.raises(InputError, match="model.remat is 1; it must be one of 'none', 'dots', 'full'"):
        Config.from_json(json.dumps(plain))
