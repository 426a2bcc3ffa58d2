"""What clients send: a request for predictions, from JSON or from a form, every value checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qs

from dslide.errors import DataError
from dslide.serve.options import ServeOptions

Kind = Literal["text", "row", "items"]
# By the key of a body: what each element is, and whether there are many.
SOURCES: dict[str, tuple[Kind, bool]] = {
    "text": ("text", False), "texts": ("text", True), "row": ("row", False), "rows": ("row", True),
    "items": ("items", False), "users": ("items", True),
}  # fmt: skip
MOST_WHY = 50
LARGEST = 3e38  # of a feature's value, which is a float32


class BadRequest(Exception):
    """A request that can't be answered: the status and one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True)
class PredictRequest:
    """Some rows of one kind, and what is wanted of them."""

    kind: Kind
    rows: list[Any]  # texts, or features with values, or lists of items
    many: bool  # whether the client sent a list of rows
    k: int
    threshold: float  # least probability
    why: int  # features that explain each label

    @property
    def options(self) -> tuple[Kind, float, int]:
        """Rows with the same can be predicted together."""
        return self.kind, self.threshold, self.why


def parse(body: bytes, content_type: str, options: ServeOptions) -> PredictRequest:
    """A request out of its body."""
    # Some clients call JSON a form. No form begins with a brace, which would be written as %7B.
    is_form = (
        not body.lstrip().startswith(b"{")
        and content_type.split(";")[0].strip().lower() == "application/x-www-form-urlencoded"
    )
    values = _of_form(body) if is_form else _of_json(body)
    sources = [key for key in SOURCES if key in values]
    if len(sources) != 1:
        raise BadRequest(400, f"expected one of {', '.join(SOURCES)}, found {' and '.join(sources) or 'none'}")
    known = {sources[0], "k", "limit", "threshold", "why", "project"}  # a project is what Annif sends
    if unknown := [key for key in values if key not in known]:
        raise BadRequest(400, f"unknown key {unknown[0][:100]!r}; known are k, threshold and why")
    kind, many = SOURCES[sources[0]]
    given = values[sources[0]]
    rows = given if many else [given]
    if not isinstance(rows, list):
        raise BadRequest(400, f"{sources[0]}: expected a list")
    if len(rows) > options.most_rows:
        raise BadRequest(413, f"{sources[0]}: {len(rows)} rows are more than the {options.most_rows} of a request")
    for row in rows:
        _check_row(kind, row)
    return PredictRequest(
        kind, rows, many, int(_number(values, "k" if "k" in values else "limit", options.k, 1, options.most_k, True)),
        _number(values, "threshold", 0, 0, 1, False), int(_number(values, "why", 0, 0, MOST_WHY, True)),
    )  # fmt: skip


def _of_json(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):  # ValueError: also bad UTF-8
        raise BadRequest(400, "the body is not valid JSON") from None
    if not isinstance(values, dict):
        raise BadRequest(400, "expected a JSON object")
    return values


def _of_form(body: bytes) -> dict[str, Any]:
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        raise BadRequest(400, "the body is not a valid form") from None
    values: dict[str, Any] = {key: given[-1] for key, given in fields.items()}
    for key in ("k", "limit", "threshold", "why"):
        if key in values:
            try:
                number = float(values[key])
            except ValueError:
                raise BadRequest(400, f"{key}: expected a number, not {values[key][:100]!r}") from None
            values[key] = int(number) if number.is_integer() else number
    return values


def _number(values: Mapping[str, Any], key: str, default: float, low: float, high: float, whole: bool) -> float:
    value = values.get(key, default)
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:  # NaN neither
        what = "a whole number" if whole else "a number"
        raise BadRequest(400, f"{key}: expected {what}, {low} to {high}, not {_short(value)}")
    return float(value)


def _check_row(kind: Kind, row: Any) -> None:
    if kind == "text":
        if not isinstance(row, str):
            raise BadRequest(400, f"expected a text, not {_short(row)}")
        try:
            row.encode()
        except UnicodeEncodeError:
            raise BadRequest(400, "a text has half of a surrogate pair, which is no character") from None
    elif kind == "row":
        if not isinstance(row, (dict, list)):
            what = "an object of features and values, or a list of numbers"
            raise BadRequest(400, f"expected a row as {what}, not {_short(row)}")
        for feature, value in row.items() if isinstance(row, dict) else enumerate(row):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
                raise BadRequest(400, f"feature {str(feature)[:100]!r}: expected a number, not {_short(value)}")
    elif not isinstance(row, list) or not all(isinstance(item, (str, int)) for item in row):
        raise BadRequest(400, f"expected a list of items, not {_short(row)}")


def _short(value: Any) -> str:
    if isinstance(value, int) and abs(value) > 1e18:  # Python writes no number of thousands of digits
        return "a very large number"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)[:100] if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"


def as_bad_request(error: DataError) -> BadRequest:
    """What the model says of rows that it can't take."""
    return BadRequest(422, str(error))
