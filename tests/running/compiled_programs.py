"""A folder of compiled programs, shared by all tests of this checkout and by the processes that they start.

Most of a test's time goes into XLA's compilation of small programs. JAX's persistent compilation cache holds them by
their content: XLA's flags, the kind of processor and the versions are in the key, so a program found there is the one
that would have been compiled. What cannot be read is compiled.
"""

import hashlib
import os
import platform
import shutil
import threading
from pathlib import Path

LIMIT_BYTES = 1 << 30


def cache_variables(root: Path) -> dict[str, str]:
    """Return environment variables that name a folder below ROOT to JAX; to set before it is imported.

    A folder that the environment names already is kept; a checkout that cannot be written to has none.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return {}
    folder = root / ".pytest_cache" / "xla" / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        size = sum(file.stat().st_size for file in folder.iterdir())
    except OSError:
        return {}
    if size > LIMIT_BYTES:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _processor() -> str:
    """Return a name for what this processor can do: a program compiled for another one may not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.machine()}-{hashlib.md5(flags.encode(), usedforsecurity=False).hexdigest()[:8]}"


def write_whole() -> None:
    """Let JAX write each program whole or not at all: another worker may look for it at the same moment."""
    from jax._src.lru_cache import LRUCache

    def put(self: LRUCache, key: str, value: bytes) -> None:
        path = Path(str(self.path)) / f"{key}-cache"
        if not path.exists():
            draft = path.with_name(f".{key[-64:]}.{os.getpid()}.{threading.get_ident()}")
            draft.write_bytes(value)
            draft.replace(path)

    LRUCache.put = put
