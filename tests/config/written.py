"""Configuration files as tests write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.config.settings import load
from coordd.errors import ConfigError


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def refused(path: str | None, environ: dict[str, str] | None = None) -> str:
    """The sentences with which a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {})
    return str(caught.value)
