"""Data sets that nobody tuned for, from Debian: `python -m bench.accuracy.debian_sets OUT`.

Texts become bags of words, so that every system gets the same rows: OUT/NAME/train.txt and test.txt, XMLRepository
text.

- `debdep`, `debtag`, `debsource`: the description of a package in a line, to the packages that it depends on, to its
  tags, and to its source package (a single label)
- `deplong`, `taglong`, `section`, `maintainer`: the long description, to dependencies, tags, section and maintainer (a
  single label each of the last two)
- `deprecommends`: the name and the long description, to packages that are depended on, recommended or suggested
- `wordnet`, `lemma`: the gloss of a synset, to its hypernyms, and to its words
- `dict`: English words to German words of a dictionary, a third of it

The package index is the one that apt has (`apt-get update` renews it); long descriptions are downloaded beside it. The
packages wordnet-base and trans-de-en are downloaded, and unpacked without being installed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.accuracy.words import write_xmc
from bench.lib.measuring import log, run_command
from dslide.data import Dataset, SparseRows, TextVectorizer
from dslide.util.csr import indptr_of

Row = tuple[str, Sequence[str]]  # text, labels
TOOLS = ("apt-cache", "apt-get", "dpkg-deb")
TEST_SHARE = 0.1
DICT_SHARE = 1 / 3
SEED = 20_250_101
LETTERS = re.compile(r"[^\W\d_]{2,}")
NOTES = re.compile(
    r"\{.*?\}|\[.*?\]|\(.*?\)|/.*?/|<.*?>"
)  # of the dictionary: gender, field, explanation, abbreviation


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return LETTERS.findall(text.lower())


# ---- package index ---------------------------------------------------------------------------------------------------


def stanzas(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """The fields of each package in the lines of a package index; lines that continue a field are joined to it."""
    fields: dict[str, str] = {}
    name = ""
    for line in lines:
        line = line.rstrip("\n")
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif line[0].isspace():
            if fields:
                fields[name] += line
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    if fields:
        yield fields


def names(field: str) -> list[str]:
    """The packages or tags of a field, without versions and architectures, each once. Of alternatives the first."""
    found = (re.match(r"\s*([^\s|(]+)", entry) for entry in field.split(","))
    return list(dict.fromkeys(re.sub(r":(any|native)$", "", match[1]) for match in found if match))


def by_field(packages: Iterable[Mapping[str, str]], field: str) -> list[Row]:
    """Descriptions, and the names in a field, of packages that have it."""
    return [(fields.get("Description", ""), names(fields[field])) for fields in packages if fields.get(field)]


def by_source(packages: Iterable[Mapping[str, str]]) -> list[Row]:
    """Descriptions, and the source package: the package itself if none is named."""
    return [(fields.get("Description", ""), names(fields.get("Source", fields["Package"]))) for fields in packages]


# ---- WordNet and dictionary ------------------------------------------------------------------------------------------


def synsets(lines: Iterable[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Gloss, words and hypernyms (as offset and part of speech) of each line of a file data.noun or data.verb."""
    for line in lines:
        if line.startswith(" "):  # the licence
            continue
        facts, _, gloss = line.partition("|")
        _offset, _file, _kind, count, *rest = facts.split()
        lemmas, rest = rest[: 2 * int(count, 16) : 2], rest[2 * int(count, 16) :]
        pointers = rest[1 : 1 + 4 * int(rest[0])]
        hypernyms = [
            pointers[i + 1] + pointers[i + 2] for i in range(0, len(pointers), 4) if pointers[i] in ("@", "@i")
        ]
        yield gloss.partition('"')[0], [lemma.lower() for lemma in lemmas], hypernyms


def translations(lines: Iterable[str]) -> Iterator[Row]:
    """English words, and German words, of each pair of expressions: `a | b :: c | d` has two."""
    for line in lines:
        german, _, english = line.partition("::")
        if line.startswith("#") or not english:
            continue
        pairs = [NOTES.sub(" ", side).split("|") for side in (english, german)]
        if len(pairs[0]) == len(pairs[1]):
            yield from ((text, list(dict.fromkeys(words(others)))) for text, others in zip(*pairs, strict=True))


# ---- bags of words ---------------------------------------------------------------------------------------------------


def make_set(rows: Sequence[Row], folder: Path) -> str:
    """Writes train.txt and test.txt, a random tenth of the rows; returns their sizes as a sentence.

    Words are those of letters, in at least 2 training rows, TF-IDF, and rows have length 1. Rows without any are left
    out. Labels are those of training rows, the most frequent first; others are left out of test rows, and test rows
    without a label are left out."""
    rows = [(" ".join(words(text)), labels) for text, labels in rows if labels]
    order = np.random.default_rng(SEED).permutation(len(rows))
    tests = round(TEST_SHARE * len(rows))
    test, train = ([rows[i] for i in sorted(part)] for part in (order[:tests], order[tests:]))
    vectorizer = TextVectorizer()
    trained = vectorizer.fit_transform_rows(text for text, _ in train)
    tested = vectorizer.transform_rows(text for text, _ in test)
    # Only rows with words are written, so only their labels count.
    seen = (labels for (_, labels), count in zip(train, np.diff(trained.indptr), strict=True) if count)
    counts = Counter(label for labels in seen for label in labels)
    number_of = {name: i for i, name in enumerate(sorted(counts, key=lambda name: (-counts[name], name)))}
    folder.mkdir(parents=True, exist_ok=True)
    sizes = []
    for name, x, part in (("train", trained, train), ("test", tested, test)):
        data = _complete(Dataset(x, _numbered([labels for _, labels in part], number_of)))
        write_xmc(data, folder / f"{name}.txt", data.features)
        features, labels = data.values_per_row
        sizes.append(f"{len(data):,} {name} rows ({features:.1f} words, {labels:.1f} labels)")
    return f"{folder.name}: {', '.join(sizes)}, {len(vectorizer.words):,} words, {len(number_of):,} labels"


def _numbered(labels: Sequence[Sequence[str]], number_of: Mapping[str, int]) -> SparseRows:
    known = [[number_of[name] for name in row if name in number_of] for row in labels]
    indices = np.fromiter((number for row in known for number in row), np.int32)
    indptr = indptr_of(np.array([len(row) for row in known]))
    ones: Any = np.ones(len(indices), np.float32)
    return SparseRows.from_scipy(sp.csr_matrix((ones, indices, indptr), shape=(len(known), len(number_of))))


def _complete(data: Dataset) -> Dataset:
    """The rows that have both words and labels."""
    return data.take(np.flatnonzero((np.diff(data.x.indptr) > 0) & (np.diff(data.y.indptr) > 0)))


# ---- command ---------------------------------------------------------------------------------------------------------


def unpacked(package: str, folder: Path) -> Path:
    """Downloads a package into the folder and unpacks it there."""
    _output(["apt-get", "download", package], folder)
    archive = next(folder.glob(f"{package}_*.deb"))
    _output(["dpkg-deb", "-x", str(archive), str(folder / package)], folder)
    return folder / package / "usr/share"


def _output(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        sys.exit(f"{' '.join(command)}: {reason} (apt-get update may help)")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy.debian_sets", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the sets")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    options = parser.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        sys.exit(f"the sets are made with Debian's tools, and {' and '.join(missing)} can't be found here")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or NAMES:
            log(make_set(NAMES[name](Path(folder)), options.out / name))
    return 0


def _packages(folder: Path) -> list[dict[str, str]]:
    found = list(stanzas(_output(["apt-cache", "dumpavail"], folder).splitlines()))
    if not found:
        sys.exit("apt-cache dumpavail: the package index is empty: run apt-get update first")
    return found


def long_rows(packages: Iterable[Mapping[str, str]], fields: Sequence[str], named: bool = False) -> list[Row]:
    """Long descriptions, after the package's name if it is to be `named`, and the names in some fields, of packages
    that have one of these."""
    rows = []
    for package in packages:
        text = package.get("Description-en", package.get("Description", ""))
        labels = names(",".join(package[field] for field in fields if package.get(field)))
        if labels:
            rows.append((f"{package['Package']} {text}" if named else text, list(dict.fromkeys(labels))))
    return rows


def by_maintainer(packages: Iterable[Mapping[str, str]]) -> list[Row]:
    """Long descriptions and who maintains the package."""
    found = [(package, package.get("Maintainer", "").partition("<")[0].strip()) for package in packages]
    return [(package.get("Description-en", ""), [name]) for package, name in found if name]


def with_long(packages: Iterable[Mapping[str, str]], translations: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """The last one of each name among packages, with its long description, by the checksum of the short one."""
    texts = {fields["Description-md5"]: fields.get("Description-en", "") for fields in translations}
    last = {fields["Package"]: fields for fields in packages}
    return [
        {**fields, "Description-en": texts.get(fields.get("Description-md5", ""), fields.get("Description", ""))}
        for fields in last.values()
    ]


def _long(folder: Path) -> list[dict[str, str]]:
    """The newest version of every package with its long description, from lists of apt in the folder."""
    lists = folder / "lists"
    if not lists.exists():  # or another set has downloaded them
        (lists / "partial").mkdir(parents=True)
        _output(["apt-get", "update", "-o", "Acquire::Languages=en", "-o", f"Dir::State::lists={lists}"], folder)
    files: dict[str, list[dict[str, str]]] = {}
    for kind in ("Packages", "Translation-en"):
        found = sorted(path for path in lists.glob(f"*{kind}*") if path.is_file())
        files[kind] = [
            fields
            for path in found
            for fields in stanzas(_output(["/usr/lib/apt/apt-helper", "cat-file", str(path)], folder).splitlines())
        ]
    return with_long(files["Packages"], files["Translation-en"])


def _synsets(folder: Path) -> list[tuple[str, list[str], list[str]]]:
    share = unpacked("wordnet-base", folder) / "wordnet"
    return [
        synset
        for part in ("noun", "verb")
        for synset in synsets((share / f"data.{part}").read_text(encoding="utf-8").splitlines())
    ]


def _dict(folder: Path) -> list[Row]:
    text = (unpacked("trans-de-en", folder) / "trans/de-en").read_text(encoding="utf-8")
    rows = list(translations(text.splitlines()))
    chosen = np.random.default_rng(SEED).random(len(rows)) < DICT_SHARE
    return [row for row, taken in zip(rows, chosen, strict=True) if taken]


NAMES: dict[str, Callable[[Path], list[Row]]] = {  # from a folder for downloads to rows
    "debdep": lambda folder: by_field(_packages(folder), "Depends"),
    "debtag": lambda folder: by_field(_packages(folder), "Tag"),
    "debsource": lambda folder: by_source(_packages(folder)),
    "deplong": lambda folder: long_rows(_long(folder), ["Depends"]),
    "deprecommends": lambda folder: long_rows(_long(folder), ["Depends", "Recommends", "Suggests"], named=True),
    "taglong": lambda folder: long_rows(_long(folder), ["Tag"]),
    "section": lambda folder: long_rows(_long(folder), ["Section"]),
    "maintainer": lambda folder: by_maintainer(_long(folder)),
    "wordnet": lambda folder: [(gloss, hypernyms) for gloss, _, hypernyms in _synsets(folder)],
    "lemma": lambda folder: [(gloss, lemmas) for gloss, lemmas, _ in _synsets(folder)],
    "dict": _dict,
}


if __name__ == "__main__":
    run_command(main)
