import pytest

from proteinlm import config as package
from proteinlm.config import Config, load_config, named, named_configs
from proteinlm.errors import InputError
from proteinlm.models.attention import ATTENTION


@pytest.mark.parametrize("name", named_configs())
def test_each_experiment_loads_and_round_trips(name):
    config = load_config(name)
    assert Config.from_json(config.to_json()) == config


def test_every_mechanism_can_be_named_by_an_experiment():
    for config in ATTENTION.values():
        assert getattr(package, config.__name__) is config
        assert config.__name__ in package.__all__


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
    monkeypatch.setattr(named, "__file__", str(tmp_path / "proteinlm" / "config" / "named.py"))
    assert named_configs() == ["only"]
    assert load_config("only") == Config()
