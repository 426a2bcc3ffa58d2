"""Data: files of all common formats as sparse rows."""

from dslide.data.convert import convert
from dslide.data.dataset import Dataset
from dslide.data.dense_rows import DenseRows, Features, MixedRows, dense_part, sparse_part
from dslide.data.files import read_names
from dslide.data.formats.folder import open_dataset, write_dataset
from dslide.data.formats.interactions import for_items
from dslide.data.formats.tokens import load_tokens
from dslide.data.load import FORMATS, detect_format, load
from dslide.data.rows import SparseRows
from dslide.data.synthetic import synthesize
from dslide.data.text import TextOptions, TextVectorizer
from dslide.data.tokens import Data, Rows, TokenOptions, Tokens

__all__ = [
    "FORMATS",
    "Data",
    "Dataset",
    "DenseRows",
    "Features",
    "MixedRows",
    "Rows",
    "SparseRows",
    "TextOptions",
    "TextVectorizer",
    "TokenOptions",
    "Tokens",
    "convert",
    "dense_part",
    "detect_format",
    "for_items",
    "load",
    "load_tokens",
    "open_dataset",
    "read_names",
    "sparse_part",
    "synthesize",
    "write_dataset",
]
