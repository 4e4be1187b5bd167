"""YAML files that people write: plain data, or one error that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bitcycle.extras import require

MOST_BYTES = 2**20


def read_yaml(path: Path, *, purpose: str) -> Any:
    """The plain data of a file; nothing it names is executed."""
    yaml = require("yaml", extra="train", purpose=purpose)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; at most {MOST_BYTES:,}")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not valid YAML: it is nested too deeply") from None
    # a number, date or tag whose text does not fit it fails with whatever Python raises
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not valid YAML: {reason}") from None
