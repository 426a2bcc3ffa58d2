"""Reads the data of a run, and data like that which a saved model was trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dslide.checkpoint.saved_model import SavedModel
from dslide.data import (
    Data,
    Dataset,
    TextOptions,
    TextVectorizer,
    TokenOptions,
    Tokens,
    detect_format,
    for_items,
    load,
    load_tokens,
    read_names,
)
from dslide.data.formats.interaction_table import is_table
from dslide.data.formats.table import split_first_line
from dslide.data.items import item_features
from dslide.data.layout import LAYOUT_OPTIONS, Layout
from dslide.data.load import TEXT_FORMATS
from dslide.errors import ConfigError, DataError

D = TypeVar("D", bound=Data)
Source = str | Path | Data  # where data comes from: a path, or what was loaded

# Options of files, as `dslide.data.load` takes them; `label_names` may also be a file with a name per line.
FILE_OPTIONS = (
    "format", "base", "y", "embeddings", "features", "labels", "label_names", "vectorizer", *LAYOUT_OPTIONS
)  # fmt: skip
TEXT_OPTIONS = tuple(f.name for f in dataclasses.fields(TextOptions))
TOKEN_OPTIONS = tuple(f.name for f in dataclasses.fields(TokenOptions))
TEST_OPTIONS = ("test_y", "test_embeddings")  # of the file of test data
READING_OPTIONS = (*FILE_OPTIONS, *TEXT_OPTIONS, *TOKEN_OPTIONS, *TEST_OPTIONS)


@dataclass(frozen=True)
class Reading:
    """How data files are read: the options that were given."""

    files: Mapping[str, Any] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)  # of TextOptions
    tokens: Mapping[str, Any] = field(default_factory=dict)  # of TokenOptions
    test: Mapping[str, Any] = field(default_factory=dict)  # of the file of test data

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Reading:
        """The reading options among others."""
        groups = (FILE_OPTIONS, TEXT_OPTIONS, TOKEN_OPTIONS, TEST_OPTIONS)
        return cls(*({name: options[name] for name in names if name in options} for names in groups))

    def load_options(self, path: str | Path) -> dict[str, Any]:
        """What `dslide.data.load` takes; ConfigError for options of text if the file is none."""
        options = dict(self.files)
        if isinstance(options.get("label_names"), (str, Path)):
            options["label_names"] = read_names(options["label_names"])
        if self.text:
            format = options.get("format", "auto")
            layout = Layout(**{name: options[name] for name in LAYOUT_OPTIONS if name in options})
            if (detect_format(path, layout) if format == "auto" else format) not in TEXT_FORMATS:
                raise ConfigError(f"{next(iter(self.text))}: {path} is not raw text, so this has no use")
            text = dict(self.text)
            if isinstance(text.get("stop_words"), (str, Path)):
                text["stop_words"] = [word.strip() for word in read_names(text["stop_words"])]
            options["vectorizer"] = TextVectorizer(TextOptions(**text))
        return options

    def refuse(self) -> None:
        """ConfigError if there are any: for data that is loaded already."""
        if given := [*self.files, *self.text, *self.tokens, *self.test]:
            raise ConfigError(f"{given[0]}: is for reading files, but the data is loaded already")


# ---- for training ---------------------------------------------------------------------------------------------------


def read_training_data(source: Source, reading: Reading, saved: SavedModel | None = None) -> Data:
    """The data to train on; to resume the training of a saved model, with that model's columns."""
    if not isinstance(source, (str, Path)):
        reading.refuse()
        return source
    if is_stream(reading.files, saved):
        tokens = _token_options(reading.tokens, source, saved)
        return _load_stream(source, reading.load_options(source), tokens)
    for name in reading.tokens:
        use = "so this has no use; format = tokens reads it as one"
        raise ConfigError(f"{name}: {source} is not read as a stream of words, {use}")
    if saved is None:
        return load(source, **reading.load_options(source))
    of_model = ("label_names", "vectorizer")
    return load_for(saved, source, {name: value for name, value in reading.files.items() if name not in of_model})


def read_growth(source: Source, reading: Reading, base: SavedModel, name: object) -> Dataset:
    """New rows to train a saved model on, with its columns first; new words and labels get columns after these."""
    if not isinstance(source, (str, Path)):
        reading.refuse()
        return known_columns(source, base)
    if is_stream(reading.files) or reading.text or reading.tokens:
        option = next(iter((*reading.text, *reading.tokens, "format")))
        raise ConfigError(f"{option}: rows are read as those that {name} was trained on, so this can't be given")
    vectorizer = vectorizer_of(base)
    if vectorizer is not None:
        vectorizer.grows = True
    options = {name: value for name, value in reading.load_options(source).items() if name != "label_names"}
    names = reading.load_options(source).get("label_names") if vectorizer is None else base.label_names
    about = vectorizer, names, base.base, layout_of(base)
    return known_columns(_load_like(source, options, *about), base)


def read_replay(source: Source, reading: Reading, base: SavedModel, new: Dataset) -> Dataset:
    """Rows of a model's earlier data, with the columns of the new rows or fewer."""
    if not isinstance(source, (str, Path)):
        data: Data = source
    else:
        options = {name: reading.files[name] for name in ("format", "base") if name in reading.files}
        names = None if new.vectorizer is None else new.label_names
        data = _load_like(source, options, new.vectorizer, names, base.base, layout_of(base))
    if not isinstance(data, Dataset) or data.users is not None or data.features > new.features:
        raise DataError(f"{data.source}: are no rows with the features of the model, to be replayed")
    if data.labels > new.labels:
        raise DataError(f"{data.source}: has labels that are neither the model's nor in the new rows")
    return data


def read_token_growth(
    source: Source, replay: Source | None, reading: Reading, base: SavedModel, resumed: bool
) -> tuple[Tokens, Tokens | None]:
    """New text and, if it is given, earlier one, with the words of a model first, and further ones of the new text."""
    if not isinstance(source, (str, Path)):
        reading.refuse()
        new: Data = source
    elif is_stream(reading.files, base):
        options = reading.load_options(source), _token_options(reading.tokens, source, base), base.label_names
        new = _load_stream(source, *options, more=not resumed)
    else:
        raise ConfigError("format: a model of running text grows by running text, so this can't be given")
    known = list(base.label_names or ())
    if not isinstance(new, Tokens) or list(new.names[: len(known)]) != known:
        how = "load_tokens(path, names=words of the model, more=True) reads it"
        raise DataError(f"{new.source}: is no running text whose first words are those of the model; {how}")
    if isinstance(replay, (str, Path)):
        return new, _load_stream(replay, {}, new.options, new.names)
    if replay is not None and (not isinstance(replay, Tokens) or list(new.names[: len(replay.names)]) != replay.names):
        raise DataError(f"{replay.source}: is no running text with the words of the model, to be replayed")
    return new, replay


def read_item_growth(
    source: Source, replay: Source | None, reading: Reading, base: SavedModel
) -> tuple[Dataset, Dataset]:
    """New and earlier interactions, with users and items numbered alike, those of the model first."""
    paths = []
    for option, path in (("data", source), ("replay", replay)):
        if not isinstance(path, (str, Path)):
            raise ConfigError(f"{option}: a model of interactions grows with files of interactions")
        paths.append(path)
    options = {**reading.load_options(paths[0]), "format": "interactions", "layout": layout_of(base)}
    options |= {"label_names": base.label_names}
    earlier = load(paths[1], **options)
    new = load(paths[0], **options, history=earlier)
    return _of_used_items(new), _of_used_items(earlier)


def _of_used_items(data: Dataset) -> Dataset:
    """Interactions with their own items as features, and no more columns than up to the last one that occurs."""
    items = int(data.y.indices.max(initial=-1)) + 1
    y = dataclasses.replace(data.y, columns=items)
    names = None if data.label_names is None else data.label_names[:items]
    return dataclasses.replace(
        data, x=item_features(y, y.column_counts()), y=y, label_names=names, feature_names=names, unknown_labels=0
    )


def known_columns(data: Data, base: SavedModel) -> Dataset:
    """Data with all columns that a model has, and the names that are known."""
    if not isinstance(data, Dataset) or data.users is not None:
        raise ConfigError(
            f"from: {data.source or 'the data'} has no rows with labels, and only models of these can grow"
        )
    names = data.label_names
    if base.label_names is not None:
        known = list(base.label_names)
        if names is None and data.labels <= len(known):
            names = known[: data.labels]
        if names is None or list(names)[: len(known)] != known[: len(names)]:
            raise DataError(
                f"{data.source}: has {data.labels:,} labels, but the model knows {len(known):,} by name; give the "
                "names of all as label_names, those of the model first"
            )
        names = [*names, *known[len(names) :]]
    if data.dense_features != base.dense_features or (base.dense_features and data.features > base.features):
        raise DataError(
            f"{data.source}: has {_in_words(data.features, data.dense_features)}, but the model was trained with "
            f"{_in_words(base.features, base.dense_features)}, and with dense ones there can't be more"
        )
    x = data.x.with_columns(max(data.features, base.features))
    y = data.y.with_columns(max(data.labels, base.labels))
    features = data.feature_names
    if features is None and base.feature_names is not None and x.columns == base.features:
        features = base.feature_names
    about = data.vectorizer, data.source, base.base
    return Dataset(x, y, names, features, *about, layout=data.layout, row_weights=data.row_weights)


def _in_words(features: int, dense: int) -> str:
    return f"{features:,} features" + (f", {dense:,} of them dense" if dense else "")


def read_test_data(source: Source, train: Data, reading: Reading) -> Data:
    """Test data with the columns of the training data."""
    if not isinstance(source, (str, Path)):
        return with_known_features(source, source.source or "the test data", train.features, train.dense_features)
    if reading.test and (train.users is not None or isinstance(train, Tokens)):
        raise ConfigError(f"{next(iter(reading.test))}: has no use with this data")
    if train.users is not None:
        return load(source, format="interactions", history=train, layout=train.layout)
    options = {name: reading.files[name] for name in ("format", "base") if name in reading.files}
    if isinstance(train, Tokens):
        return _load_stream(source, options, train.options, train.label_names)
    options |= {name.removeprefix("test_"): value for name, value in reading.test.items()}
    assert isinstance(train, Dataset)
    of_train = train.vectorizer, train.label_names, train.base, train.features, train.dense_features, train.layout
    return load_like(source, options, *of_train)


def is_stream(options: Mapping[str, Any], saved: SavedModel | None = None) -> bool:
    """Whether data is a stream of words: by its format, or because none is given and the model was trained on one."""
    format = options.get("format", "auto")
    return format == "tokens" or (format == "auto" and saved is not None and saved.tokens is not None)


def _token_options(given: Mapping[str, Any], path: str | Path, saved: SavedModel | None) -> TokenOptions:
    """ConfigError if options are given that can't change on resuming."""
    if saved is None:
        return TokenOptions(**given)
    before = _saved_token_options(saved, path)
    for name, value in given.items():
        if value != getattr(before, name):
            raise ConfigError(f"{name}: the run was begun with {getattr(before, name)!r}, which can't change")
    return before


# ---- for a saved model ----------------------------------------------------------------------------------------------


def load_for(
    saved: SavedModel, path: str | Path, options: Mapping[str, Any], history: str | Path | None = None
) -> Data:
    """Data with the columns of the model; DataError if it has features that the model lacks."""
    options = dict(options)
    if options.get("format", "auto") == "auto" and saved.interactions:
        options["format"] = "interactions"
    if options.get("format") == "interactions":
        if not saved.interactions:
            raise DataError(f"{path}: interactions are only for models that were trained on interactions")
        return _load_interactions(saved, path, options, history)
    if history is not None:
        raise ConfigError(f"history: only interactions have one, not {path}")
    if is_stream(options, saved):
        return _load_stream(path, options, _saved_token_options(saved, path), saved.label_names)
    about = saved.label_names, saved.base, saved.features, saved.dense_features, layout_of(saved)
    return load_like(path, options, vectorizer_of(saved), *about)


def vectorizer_of(saved: SavedModel) -> TextVectorizer | None:
    """What turns text into the model's features."""
    return None if saved.vectorizer is None else TextVectorizer.from_dict(saved.vectorizer)


def layout_of(saved: SavedModel) -> Layout:
    """The columns of the file that the model was trained on."""
    return Layout() if saved.layout is None else Layout.from_dict(saved.layout)


def load_like(
    path: str | Path, options: Mapping[str, Any], vectorizer: TextVectorizer | None, label_names: Sequence[str] | None,
    base: int, features: int, dense_features: int, layout: Layout,
) -> Dataset:  # fmt: skip
    """Data read the way the training data was; DataError if it has more features, or others."""
    data = _load_like(path, options, vectorizer, label_names, base, layout)
    return with_known_features(data, path, features, dense_features)


def _load_like(
    path: str | Path, options: Mapping[str, Any], vectorizer: TextVectorizer | None, label_names: Sequence[str] | None,
    base: int, layout: Layout,
) -> Dataset:  # fmt: skip
    options = dict(options)
    if options.get("format", "auto") == "auto":
        options["format"] = _format_of_texts(path, options, layout) if vectorizer is not None else detect_format(path)
    if options["format"] in TEXT_FORMATS and vectorizer is None:
        raise DataError(f"{path}: is raw text, but the model was trained on numbered features and knows no words")
    if options.get("base", "auto") == "auto" and options["format"] in ("xmc", "libsvm"):  # others always count from 0
        options["base"] = base
    return load(path, **options, vectorizer=vectorizer, label_names=label_names, layout=layout)


def _format_of_texts(path: str | Path, options: Mapping[str, Any], layout: Layout) -> str:
    """The format of data for a model of text: a table if its first line has the name of the known column of texts."""
    given = Layout(**{name: options[name] for name in LAYOUT_OPTIONS if name in options})
    if not Path(path).is_dir() and _names_texts(given.over(layout), split_first_line(path)):
        return "tsv"
    return detect_format(path, given, texts=True)


def _names_texts(layout: Layout, names: Sequence[str]) -> bool:
    columns = [column for column, _ in layout.text_columns()]
    return bool(columns) and all(column in names for column in columns)


def with_known_features(data: D, name: str | Path, features: int, dense_features: int) -> D:
    """The data; DataError if it has features that a model has not. Rows that are all dense may be given as sparse
    ones, and the other way round."""
    has, trained = _in_words(data.features, data.dense_features), _in_words(features, dense_features)
    all_dense = data.dense_features == data.features > 0
    of_both = 0 < dense_features < features or 0 < data.dense_features < data.features
    if of_both and data.dense_features != dense_features:
        how = "; embeddings gives the file of the dense ones" if data.dense_features == 0 else ""
        raise DataError(f"{name}: has {has}, but the model was trained with {trained}{how}")
    if data.features > features or (all_dense and data.features != features):
        raise DataError(f"{name}: has {has}, but the model was trained with {trained}")
    return data


def _load_interactions(
    saved: SavedModel, path: str | Path, options: dict[str, Any], history: str | Path | None
) -> Dataset:
    """Interactions with the items of the model."""
    counts, by_name = saved.label_counts, saved.feature_names is not None
    options["layout"] = layout_of(saved)
    given = Layout(**{name: options[name] for name in LAYOUT_OPTIONS if name in options})
    for file in (path, *([] if history is None else [history])):
        if is_table(file, given.over(options["layout"])) != by_name:
            names = "numbers, and this is no file with a line of numbers, user item item ..., for each user"
            if by_name:
                names = "names, and this is no table with a line, such as user,item, for each user and item"
            raise DataError(f"{file}: the model knows its items by {names}")
    if by_name:
        options["label_names"] = saved.label_names
    earlier = None
    if history is not None:
        earlier = for_items(load(history, **options), saved.features, counts)
        options.pop("label_names", None)  # the history has them
    data = for_items(load(path, **options, history=earlier), saved.features, counts)
    if saved.label_names is None or data.unknown_labels:
        return data
    return data.with_label_names(saved.label_names)


def _saved_token_options(saved: SavedModel, path: str | Path) -> TokenOptions:
    if saved.tokens is None:
        raise DataError(f"{path}: is to be read as a stream of words, but the model was not trained on one")
    return TokenOptions(**saved.tokens)


def _load_stream(
    path: str | Path, files: Mapping[str, Any], options: TokenOptions, names: Sequence[str] | None = None,
    more: bool = False,
) -> Tokens:  # fmt: skip
    """Reads a stream of words; `files` are options of files, few of which apply; `more` as `load_tokens` has it."""
    if unused := [name for name in files if name != "format" and (name, files[name]) != ("base", "auto")]:
        raise ConfigError(f"{unused[0]}: has no use with a stream of words")
    return load_tokens(path, options, names, more)
