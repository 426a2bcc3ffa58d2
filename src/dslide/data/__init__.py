"""Data: from files of every common format to sparse rows."""

from .convert import convert
from .dataset import Dataset
from .files import read_names
from .interactions import for_items
from .load import FORMATS, detect_format, load
from .ondisk import open_dataset, write_dataset
from .rows import SparseRows
from .synth import synthesize
from .text import TextOptions, TextVectorizer
from .tokens import Data, Rows, TokenOptions, Tokens, load_tokens

__all__ = [
    "FORMATS",
    "Data",
    "Dataset",
    "Rows",
    "SparseRows",
    "TextOptions",
    "TextVectorizer",
    "TokenOptions",
    "Tokens",
    "convert",
    "detect_format",
    "for_items",
    "load",
    "load_tokens",
    "open_dataset",
    "read_names",
    "synthesize",
    "write_dataset",
]
