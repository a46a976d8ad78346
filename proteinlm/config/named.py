"""Configs by file or name: `load_config`, and the experiments in configs/ that come with the package."""

import dataclasses
import difflib
import importlib.util
import re
from pathlib import Path
from typing import Any

from proteinlm.config.experiment import Config
from proteinlm.errors import InputError


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
