"""One run of one system: `python -m bench.lib.worker MODULE:FUNCTION ARGUMENTS` calls the function with the arguments,
a JSON object, and prints its results as JSON."""

from __future__ import annotations

import importlib
import json
import sys

if __name__ == "__main__":
    module, name = sys.argv[1].split(":")
    function = getattr(importlib.import_module(module), name)
    print(json.dumps(function(**json.loads(sys.argv[2]))))
