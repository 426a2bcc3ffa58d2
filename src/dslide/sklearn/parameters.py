"""The estimator's parameters, as its docstring has them."""

from __future__ import annotations

import dataclasses
import textwrap

from dslide.config import Config


def parameters_text() -> str:
    """The options in the form that scikit-learn's documentation has."""
    lines = ["", "    Parameters", "    ----------"]
    for field in dataclasses.fields(Config):
        lines.append(f"    {field.name} : {field.type}, default={field.default!r}")
        lines += textwrap.wrap(field.metadata["help"], 98, initial_indent=" " * 8, subsequent_indent=" " * 8)
    lines += ["    verbose : bool, default=False", "        print progress on stderr"]
    lines += ["    vectorizer : default=None", "        what makes features of texts, such as scikit-learn's"]
    lines += ["        TfidfVectorizer; None: dslide's own", "    "]
    return "\n".join(lines)
