"""Manifests: a CSV or Parquet table of `path,label[,split]`, kept as columns, with nothing per row in Python."""

from pathlib import Path
from typing import Any

import numpy as np

from vitreous.base.errors import DataError, did_you_mean
from vitreous.base.extras import need
from vitreous.data.dataset import SPLITS, DataSet, in_order, split_by_label
from vitreous.data.names import Names, printable
from vitreous.data.source import Listed

COLUMNS = ("path", "label")
SUFFIXES = (".csv", ".tsv", ".parquet")


class Manifest(Listed):
    """Files that a table lists; relative paths start at the table's folder."""

    def open(self, row: int) -> Path:
        return self.root.parent / self.names[row]

    def location(self, row: int) -> str:
        return printable(str(self.open(row)))


def open_manifest(path: Path) -> DataSet:
    """Read a manifest. Pictures keep its order; classes are sorted by value where all are numbers, else as text.

    Args:
        path: `.csv`, `.tsv` or `.parquet` with the columns `path`, `label` and perhaps `split`
            (train, val or test).

    Raises:
        DataError: other columns, an empty cell, or an unknown split, with its row; or no pyarrow.
    """
    table = _read(path)
    if not table.num_rows:
        raise DataError(f"{path} has no rows")
    for name in table.column_names:
        if table.column(name).null_count:
            row = int(np.flatnonzero(table.column(name).is_null().to_numpy())[0])
            raise DataError(f"{path}: row {row + 1} has no {name}")
    source = Manifest(path, Names.from_arrow(table.column("path")))
    labels, classes = encode(table.column("label"))
    if "split" not in table.column_names:
        return DataSet(path, {"all": split_by_label(source, np.arange(len(labels)), labels, classes)})
    places, words = encode(table.column("split"))
    known = [SPLITS.get(word.strip().lower()) for word in words]
    if None in known:
        word = words[known.index(None)]
        row = int(np.flatnonzero(places == words.index(word))[0])
        raise DataError(f"{path}: row {row + 1} is of the split {word!r}: train, val or test are known")
    splits = {}
    for name in {name for name in known if name is not None}:
        rows = np.flatnonzero(np.isin(places, [i for i, other in enumerate(known) if other == name]))
        splits[name] = split_by_label(source, rows, labels[rows], classes)
    return DataSet(path, in_order(splits.items()))


def is_manifest(path: Path) -> bool:
    """Whether a Parquet file lists paths, rather than holding the pictures themselves."""
    pa, parquet = _arrow(path, "pyarrow"), _arrow(path, "pyarrow.parquet")

    try:
        return not any(pa.types.is_struct(field.type) for field in parquet.read_schema(path))
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is not a whole PARQUET table ({_one_line(error)})") from None


def _read(path: Path) -> Any:
    """The columns that count, and no others, as a `pyarrow.Table`."""
    pa, csv, parquet = (_arrow(path, f"pyarrow{part}") for part in ("", ".csv", ".parquet"))

    kind = path.suffix.lower()
    parse = csv.ParseOptions(delimiter="\t" if kind == ".tsv" else ",")
    try:
        schema = parquet.read_schema(path) if kind == ".parquet" else csv.open_csv(path, parse_options=parse).schema
        there = schema.names
        for name in COLUMNS:
            if name not in there:
                raise DataError(
                    f"{path} has no column {name!r}{did_you_mean(name, there)}: it has "
                    f"{', '.join(map(repr, there))}; a manifest has path, label and perhaps split"
                )
        found = [name for name in (*COLUMNS, "split") if name in there]
        if kind == ".parquet":
            return parquet.read_table(path, columns=found)
        text = csv.ConvertOptions(
            include_columns=found,
            column_types=dict.fromkeys(found, pa.string()),  # of the labels 01 and 1, too
            strings_can_be_null=True,
            null_values=[""],
        )
        return csv.read_csv(path, parse_options=parse, convert_options=text)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is not a whole {kind[1:].upper()} table ({_one_line(error)})") from None


def encode(column: Any) -> tuple[np.ndarray, list[str]]:
    """A column as (n,) indices into its distinct values, as text."""
    import pyarrow

    encoded = column.cast(pyarrow.string()).dictionary_encode().unify_dictionaries().combine_chunks()
    if isinstance(encoded, pyarrow.ChunkedArray):
        encoded = encoded.chunk(0)
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()


def _arrow(path: Path, module: str) -> Any:
    return need(module, extra="parquet", for_=f"{path}: a manifest", error=DataError)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
