"""The version of this Lakewarden and, in a checkout, its commit."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@cache
def build() -> str:
    """`0.1.0+1a2b3c4d5e6f` from a checkout, `0.1.0` from a wheel."""
    commit = _checkout_commit(Path(__file__).resolve().parent.parent / ".git")
    return f"{release()}+{commit[:12]}" if commit else release()


@cache
def release() -> str:
    try:
        return version("lakewarden")
    except PackageNotFoundError:
        return "0.0.0"


def _checkout_commit(git: Path) -> str:
    """The checked-out commit, read from git's files: the worker's host may have no git program."""
    head = git / "HEAD"
    if not head.is_file():
        return ""
    text = head.read_text("utf-8").strip()
    if not text.startswith("ref: "):
        return text
    name = text.removeprefix("ref: ")
    if (git / name).is_file():
        return (git / name).read_text("utf-8").strip()
    packed = git / "packed-refs"
    lines = packed.read_text("utf-8").splitlines() if packed.is_file() else []
    return next((line.split(" ", 1)[0] for line in lines if line.endswith(f" {name}")), "")
