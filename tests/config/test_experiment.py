import dataclasses
import json

import pytest

from proteinlm.config import (
    BatchesConfig,
    Config,
    FavorConfig,
    GeneralizedConfig,
    LinformerConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PolynomialConfig,
    SoftmaxConfig,
    load_config,
    named_configs,
)
from proteinlm.config import experiment as config_module
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


@pytest.mark.parametrize("name", named_configs())
def test_each_experiment_loads_and_round_trips(name):
    config = load_config(name)
    assert Config.from_json(config.to_json()) == config


def test_every_mechanism_can_be_named_by_an_experiment():
    for config in ATTENTION.values():
        assert getattr(config_module, config.__name__) is config
        assert config.__name__ in config_module.__all__


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


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Config(model=ModelConfig(vocab_size=7)), "29"),
        (lambda: dataclasses.replace(Config(), num_steps=0), "num_steps"),
        (lambda: dataclasses.replace(Config(), eval_every=-1), "eval_every"),
        (lambda: ObjectiveConfig(mask_fraction=0.0), "mask_fraction"),
        (lambda: ObjectiveConfig(mask_token=0.8, random_token=0.3), "at most 1"),
        (lambda: OptimizerConfig(learning_rate=0.0), "learning_rate"),
        (lambda: OptimizerConfig(clip=-1.0), "clip"),
        (lambda: OptimizerConfig(clip=float("nan")), "clip"),
        (lambda: OptimizerConfig(b1=1.5), "b1"),
        (lambda: OptimizerConfig(eps=0.0), "eps"),
        (lambda: OptimizerConfig(final_fraction=float("inf")), "optimizer.final_fraction is inf; .* a finite number"),
        (lambda: OptimizerConfig(learning_rate=float("inf")), "optimizer.learning_rate is inf; .* a finite number"),
        (lambda: OptimizerConfig(weight_decay=float("nan")), "optimizer.weight_decay is nan; .* a finite number"),
        (lambda: ObjectiveConfig(mask_token=float("nan")), "objective.mask_token is nan; .* a finite number"),
        (lambda: Config(redraw_growth=float("inf")), "redraw_growth is inf; .* a finite number"),
        (lambda: with_attention(PolynomialConfig(beta=float("nan"))), r"model\.attention\.beta is nan"),
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
    with pytest.raises(InputError, match=r"batches\.length is 1024 .* 100"):
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


def test_configs_saved_before_a_field_existed_mean_its_default():
    old = json.loads(Config().to_json())
    for name in ("positions", "feed_forward", "norm", "tied_output"):
        del old["model"][name]
    assert Config.from_json(json.dumps(old)) == Config()
    del old["model"]["dtype"]
    with pytest.raises(InputError, match="lacks dtype"):
        Config.from_json(json.dumps(old))


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(InputError, match="did you mean quickstart_causal"):
        load_config("quickstart_casual")
    with pytest.raises(InputError, match="did you mean quickstart_causal"):
        load_config("configs/quickstart_casual.py")


def test_a_file_of_ones_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import dataclasses\nfrom proteinlm.config import Config\n"
        "def get_config():\n    return dataclasses.replace(Config(), num_steps=3)\n"
    )
    assert load_config(str(file)).num_steps == 3
    saved = tmp_path / "saved.json"
    saved.write_text(load_config(str(file)).to_json())
    assert load_config(str(saved)).num_steps == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def get_config():\n    return 3\n", "returned int"),
        ("x = 1\n", "get_config"),
        ("def get_config(:\n", "cannot be read"),
        ("def get_config():\n    return 1 / 0\n", "cannot be read as a config .* ZeroDivisionError: division by zero"),
        ("int('x')\n", "cannot be read as a config .* ValueError: invalid literal"),
        ("x = '\x00'\n", "cannot be read as a config"),
        (
            "from proteinlm.config import Config\ndef get_config():\n    return Config(num_step=3)\n",
            "did you mean 'num_steps'",
        ),
        ("from proteinlm.config import Config\ndef get_config():\n    return Config(num_steps=0)\n", "num_steps"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, words):
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(InputError, match=words) as error:
        load_config(str(file))
    assert "bad.py" in str(error.value)


@pytest.mark.parametrize("suffix", ["json", "py"])
def test_a_file_that_is_no_text_is_named(tmp_path, suffix):
    file = tmp_path / f"bad.{suffix}"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=rf"bad\.{suffix} (is not JSON: it is not text|cannot be read)"):
        load_config(str(file))


def test_an_installed_package_finds_its_experiments(tmp_path, monkeypatch):
    (tmp_path / "proteinlm" / "configs").mkdir(parents=True)
    (tmp_path / "proteinlm" / "configs" / "only.py").write_text(
        "from proteinlm.config import Config\ndef get_config():\n    return Config()\n"
    )
    monkeypatch.setattr(config_module, "__file__", str(tmp_path / "proteinlm" / "config" / "experiment.py"))
    assert named_configs() == ["only"]
    assert load_config("only") == Config()


@pytest.mark.parametrize(("before", "now"), [(False, "none"), (True, "full")])
def test_runs_saved_before_there_was_a_mesh_load(before, now):
    plain = json.loads(Config().to_json())
    del plain["mesh"], plain["accumulate"]
    plain["model"]["remat"] = before
    loaded = Config.from_json(json.dumps(plain))
    assert loaded.model.remat == now
    assert (loaded.mesh, loaded.accumulate) == (Config().mesh, 1)


def test_what_remat_never_was_is_refused():
    plain = json.loads(Config().to_json())
    plain["model"]["remat"] = 1
    with pytest.raises(InputError, match="model.remat is 1; it must be one of 'none', 'dots', 'full'"):
        Config.from_json(json.dumps(plain))


def test_parts_divide_a_batch():
    with pytest.raises(InputError, match="accumulate is 3, which does not divide batches.batch_size, 8"):
        Config(accumulate=3)
