"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_runs_and_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert names["labels"].shape == names["scores"].shape == (500, 5)
    assert float(capsys.readouterr().out.split()[-1]) > 0.3  # the most frequent label alone is right in 5 % of rows


def test_every_document_it_links_to_exists():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README.read_text()):
        assert (README.parent / target).exists(), target
