"""The values of a document that came with an arrival: the fields of a JSON object, or of a msgpack map."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Bytes of a document, and fields of it.
BODY_BYTES_MAX = 64 * 1024
FIELDS_MAX = 200


def read_json(body: bytes) -> dict[str, Any]:
    """The fields of a JSON object; {} of an empty body. Raises ValueError with what was expected."""
    if not body.strip():
        return {}
    try:
        document = json.loads(body)
    except RecursionError as exc:
        raise ValueError("expected JSON that is not nested so deeply") from exc
    except ValueError as exc:
        raise ValueError(f"expected JSON: {exc!s:.100}") from exc
    return fields_of(document)


def fields_of(document: object) -> dict[str, Any]:
    """The fields of a document. Raises ValueError unless it is an object with few of them."""
    if not isinstance(document, dict):
        raise ValueError(  # noqa: TRY004  # it is about what others sent
            f"expected an object with fields, found {type(document).__name__}"
        )
    if len(document) > FIELDS_MAX:
        raise ValueError(f"expected at most {FIELDS_MAX} fields, found {len(document)}")
    return {str(name): value for name, value in document.items()}


def values_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """For {trigger.body.NAME}: texts, numbers and booleans. Other fields have no value that a run could get."""
    return {
        f"body.{name}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in fields.items()
        if isinstance(value, str | int | float)
    }
