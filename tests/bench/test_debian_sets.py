"""Sets from Debian packages: the readers on a few lines, and the files on invented rows."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bench.accuracy import debian_sets
from bench.accuracy.debian_sets import (
    by_field,
    by_maintainer,
    by_source,
    long_rows,
    make_set,
    names,
    stanzas,
    synsets,
    translations,
    with_long,
    words,
)
from dslide.data import load

INDEX = """\
Package: alpha
Source: letters (1.2-3)
Depends: libc6 (>= 2.34), python3:any (>= 3.9~), beta | gamma,
 delta, libc6 (<< 3)
Description: Game of 3 letters
 .
 More about it
Tag: game::strategy, role::program,
 use::gameplaying

Package: beta
Description: Data of the game

"""
NOUNS = """\
  1 This line belongs to the licence
00039021 04 n 01 interaction 0 003 @ 00037396 n 0000 + 01946440 a 0101 ~ 00039211 n 0000 | a mutual action; "an example"
00039211 04 n 0b A 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 k_l 0 002 @i 00039021 n 0000 @ 00000007 n 0000 | eleven words
"""
VERBS = """\
00023244 29 v 02 de-energize 0 de-energise 0 001 @ 00224901 v 0000 01 + 10 00 | deprive of energy
"""
DICTIONARY = """\
# Version :: 1
Herzindex {m} /HI/ [med.] :: cardiac index /CI/
Aal {m} (Tier); Fisch | Aal blau :: eel | eel au bleu <blue eel>
drei | zwei :: one
ohne Übersetzung
"""


def test_fields_of_packages_are_joined_from_their_lines() -> None:
    alpha, beta = stanzas(INDEX.splitlines(keepends=True))
    assert alpha["Package"] == "alpha"
    assert alpha["Tag"] == "game::strategy, role::program, use::gameplaying"
    assert words(alpha["Description"]) == ["game", "of", "letters", "more", "about", "it"]
    assert beta == {"Package": "beta", "Description": "Data of the game"}
    assert list(stanzas([])) == []


def test_packages_get_their_long_descriptions() -> None:
    packages = [
        {"Package": "a", "Description": "old"},
        {"Package": "a", "Description": "short", "Description-md5": "1", "Depends": "b, c", "Suggests": "c, d"},
        {
            "Package": "b",
            "Description": "only short",
            "Description-md5": "2",
            "Maintainer": "Some Team <x@example.org>",
        },
    ]
    made = with_long(packages, [{"Description-md5": "1", "Description-en": "short and more"}])
    assert [fields["Description-en"] for fields in made] == ["short and more", "only short"]
    assert long_rows(made, ["Depends"]) == [("short and more", ["b", "c"])]
    assert long_rows(made, ["Depends", "Suggests"], named=True) == [("a short and more", ["b", "c", "d"])]
    assert by_maintainer(made) == [("only short", ["Some Team"])]


def test_labels_are_names_without_versions_each_once() -> None:
    alpha, beta = stanzas(INDEX.splitlines())
    assert names(alpha["Depends"]) == ["libc6", "python3", "beta", "delta"]
    assert by_field([alpha, beta], "Tag") == [
        (alpha["Description"], ["game::strategy", "role::program", "use::gameplaying"])
    ]
    assert [labels for _, labels in by_source([alpha, beta])] == [["letters"], ["beta"]]


def test_synsets_have_gloss_words_and_hypernyms() -> None:
    first, second = synsets(NOUNS.splitlines())
    assert (first[0].strip(), *first[1:]) == ("a mutual action;", ["interaction"], ["00037396n"])
    assert second[1] == [*"abcdefghij", "k_l"]  # the number of words is hexadecimal
    assert second[2] == ["00039021n", "00000007n"]
    assert [hypernyms for *_, hypernyms in synsets(VERBS.splitlines())] == [["00224901v"]]


def test_translations_are_pairs_of_expressions_without_notes() -> None:
    found = [(words(text), labels) for text, labels in translations(DICTIONARY.splitlines())]
    assert found == [
        (["cardiac", "index"], ["herzindex"]),
        (["eel"], ["aal", "fisch"]),
        (["eel", "au", "bleu"], ["aal", "blau"]),
    ]


def test_a_set_has_complete_rows_in_a_fixed_split(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [(f"Topic{'abcdefgh'[i]} text 42 {'rare' * (j == 0)}", [f"l{i}", f"only{j}"][: 1 + (j % 2)])
            for j, i in enumerate(random.integers(0, 8, 400))]  # fmt: skip
    rows += [("42 7", ["l0"]), ("text", [])] * 20  # without words, without labels
    about = make_set(rows, tmp_path / "made")
    train, test = (load(tmp_path / f"made/{part}.txt", base=0) for part in ("train", "test"))
    assert about.startswith(f"made: {len(train)} train rows")
    assert len(train) + len(test) <= 400
    assert 30 <= len(test) <= 44  # a tenth, without rows that have no words
    assert (test.features, test.labels) == (train.features, train.labels)
    assert train.features == 9  # eight topics and "text"; "rare" is in one row
    for data in (train, test):
        assert np.diff(data.x.indptr).min() > 0
        assert np.diff(data.y.indptr).min() > 0
        np.testing.assert_allclose(np.sqrt(np.add.reduceat(data.x.values**2, data.x.indptr[:-1])), 1, rtol=1e-4)
    counts = train.label_counts
    assert counts.min() > 0  # every label was seen in training
    assert (np.diff(counts) <= 0).all()  # the most frequent ones come first
    written = (tmp_path / "made/train.txt").read_bytes()
    make_set(rows, tmp_path / "made")
    assert (tmp_path / "made/train.txt").read_bytes() == written


def test_missing_tools_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["debian_sets", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="apt-cache and apt-get and dpkg-deb can't be found here"):
        debian_sets.main()
