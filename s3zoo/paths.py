"""Where this copy of s3zoo keeps its configs and documents and, if it is a clone, which commit it is."""

import subprocess
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def configs_dir() -> Path:
    """The folder with the shipped configs: inside the package in an installed wheel, beside it in a clone."""
    return _shipped("configs")


def docs_dir() -> Path:
    """The folder with the documentation."""
    return _shipped("docs")


def _shipped(name: str) -> Path:
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def commit() -> str | None:
    """The clone's commit, with `+changes` if tracked files differ from it; None outside a clone."""
    if not (_PACKAGE.parent / ".git").exists():
        return None

    def git(*args: str) -> str:
        command = ["git", "-C", str(_PACKAGE.parent), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):  # no git, no commit yet, or a clone owned by somebody else
        return None
