"""Checks the manifests of examples/kubernetes against the schemas that operators publish, as `kubectl apply` would:

    python tests/support/crd_check.py FILE...     # custom resource definitions

Fields that a schema does not have are errors, as with strict validation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """All manifests, with the names of their files."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def schemas(paths: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """By API version and kind the schemas in files of definitions."""
    found = {}
    for path in paths:
        for document in yaml.safe_load_all(Path(path).read_text()):
            spec = document["spec"]
            for version in spec["versions"]:
                key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                found[key] = strict(version["schema"]["openAPIV3Schema"])
    return found


def strict(schema: Any) -> Any:
    """The same schema, which allows only the properties that it names, and whose metadata is any."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: strict(part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        parts.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    return parts


def main() -> None:
    known, wrong = schemas(sys.argv[1:]), 0
    for file, manifest in manifests():
        key = manifest["apiVersion"], manifest["kind"]
        if key not in known:
            print(f"{file}: {manifest['kind']}: no schema given")
            continue
        errors = list(jsonschema.Draft7Validator(known[key]).iter_errors(manifest))
        for error in errors:
            print(f"{file}: {manifest['kind']}: {'.'.join(map(str, error.path))}: {error.message[:200]}")
        wrong += len(errors)
        print(f"{file}: {manifest['kind']}: {'valid' if not errors else 'not valid'}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
