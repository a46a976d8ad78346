"""Configs by file or name: `load_config`, and the experiments in configs/ that come with the package."""

import dataclasses
import difflib
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

from proteinlm.config.experiment import Config
from proteinlm.errors import InputError


def _config_folders() -> list[Path]:
    package = Path(__file__).parents[1]
    # An installed package has configs/ inside, a checkout beside the package.
    return [package / "configs", package.parent / "configs"]


def named_configs() -> list[str]:
    """Return the sorted names of the configs that come with proteinlm."""
    return sorted({file.stem for folder in _config_folders() for file in folder.glob("[!_]*.py")})


def _nearest_field(message: str, module: Any) -> str:
    """Return a hint with the nearest field name, for Python's message about a misspelt field of a dataclass."""
    parts = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", message)
    kind = getattr(module, parts[1], None) if parts else None
    if not parts or not dataclasses.is_dataclass(kind):
        return ""
    close = difflib.get_close_matches(parts[2], [f.name for f in dataclasses.fields(kind)], 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def load_config(name: str | os.PathLike[str]) -> Config:
    """Return the config of a file, or of a name such as "quickstart_causal".

    Args:
        name: a .py file with `get_config() -> Config`, a .json file, or one of `named_configs()`.

    Raises:
        InputError: there is no such file or name (the message has the nearest name), or the file has no valid Config.
    """
    name = os.fspath(name)
    path = Path(name)
    if not path.is_file():
        stem = path.stem if path.suffix == ".py" else name
        files = [folder / f"{stem}.py" for folder in _config_folders() if (folder / f"{stem}.py").is_file()]
        if not files or path.parent not in (Path("."), Path("configs")):
            close = difflib.get_close_matches(stem, named_configs(), 1)
            hint = f"did you mean {close[0]}?" if close else f"the names are {', '.join(named_configs())}."
            raise InputError(f"there is no config file or config name {name!r}; {hint}")
        path = files[0]
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
        # The file is the user's: any exception in it is an error that the user can correct.
        kind = type(error).__name__
        raise InputError(f"{path} cannot be read as a config with get_config(): {kind}: {error}") from error
    if not isinstance(config, Config):
        raise InputError(f"{path}: get_config() returned {type(config).__name__}, not a proteinlm Config.")
    # Python does not check the types of fields; reading JSON does.
    return Config.from_json(config.to_json(), str(path))
