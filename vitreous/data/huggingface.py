"""Data sets of the Hugging Face `datasets` package: from the hub, saved to disk, or as Parquet or Arrow files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.base.errors import DataError, ImageError
from vitreous.base.extras import need
from vitreous.data.dataset import SPLITS, DataSet, LeftOut, Split, in_order, split_by_label
from vitreous.data.names import printable
from vitreous.data.source import Source

HUB = "hf:"
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")


class Table(Source):
    """Pictures in the rows of a `datasets.Dataset`, not decoded by it.

    Args:
        root: what the data set is called.
        dataset: memory-mapped.
        image: the column of pictures.
        split: for names.
    """

    def __init__(self, root: Path, dataset: Any, image: str, split: str) -> None:
        self.root, self.dataset, self.image, self.split = root, dataset, image, split

    def name(self, row: int) -> str:
        return f"{self.split}/{row}"

    def open(self, row: int) -> Path | bytes:
        cell = self.dataset[row][self.image]
        if cell is None or (cell["bytes"] is None and cell["path"] is None):
            raise ImageError(f"{self.location(row)} is empty")
        return cell["bytes"] if cell["bytes"] is not None else Path(cell["path"])


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def open_saved(folder: Path) -> DataSet:
    """What `save_to_disk` wrote."""
    return _convert(folder, _call(str(folder), lambda datasets: datasets.load_from_disk(str(folder))))


def open_files(path: Path) -> DataSet:
    """A folder of Parquet or Arrow files, as the hub keeps them, or a single file."""
    if path.is_dir():
        return _convert(path, _call(str(path), lambda datasets: datasets.load_dataset(str(path))))
    kind = "parquet" if path.suffix == ".parquet" else "arrow"
    return _convert(path, _call(str(path), lambda datasets: datasets.load_dataset(kind, data_files=str(path))))


def open_hub(name: str) -> DataSet:
    """A data set by its name on the hub: `hf:owner/name`, or `hf:owner/name:configuration`."""
    repository, _, configuration = name.removeprefix(HUB).partition(":")
    loaded = _call(name, lambda datasets: datasets.load_dataset(repository, configuration or None))
    return _convert(Path(name), loaded)


def _call(name: str, load: Any) -> Any:
    datasets = need("datasets", extra="datasets", for_=name, error=DataError)
    try:
        return load(datasets)
    except Exception as error:  # of many kinds: no such data set, no network, a gated one, broken files
        text = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name} cannot be opened by the datasets package: {text}") from error


def _convert(root: Path, loaded: Any) -> DataSet:
    parts: Mapping[str, Any] = loaded if isinstance(loaded, Mapping) else {"all": loaded}
    splits: dict[str, Split] = {}
    ignored = []
    for word, dataset in parts.items():
        name = "all" if word == "all" else SPLITS.get(word)
        split = None if name is None else _split(root, word, dataset)
        if split is None:
            ignored.append(word)
        elif name is not None:
            splits[name] = split
    if not splits:
        known = ", ".join(parts)
        raise DataError(f"{root} has no split with labels of the name train, val or test: it has {known}")
    return DataSet(root, in_order(splits.items()), LeftOut(others=tuple(ignored)))


def _split(root: Path, word: str, dataset: Any) -> Split | None:
    """One split, or None where none of its pictures has a label (the test sets of competitions)."""
    import datasets

    image = _image_column(root, dataset.features)
    label = _label_column(root, dataset.features)
    values = dataset.select_columns([label]).with_format("arrow")[:].column(label)
    source = Table(root, dataset.cast_column(image, datasets.Image(decode=False)).with_format(None), image, word)
    feature = dataset.features[label]
    rows = np.arange(len(dataset))
    if isinstance(feature, datasets.ClassLabel):
        labels = values.fill_null(-1).to_numpy().astype(np.int64)
        names = [printable(str(name)) for name in feature.names]
        if len(labels) and (labels < 0).all():
            return None
        if (bad := np.flatnonzero((labels < 0) | (labels >= len(names)))).size:
            raise DataError(f"{source.location(int(bad[0]))} has the label {labels[bad[0]]} of {len(names)} classes")
        return Split(source, rows, labels, tuple(names))
    from vitreous.data.manifest import encode

    if values.null_count:
        raise DataError(f"{root}: {values.null_count:,} rows of the split {word!r} have no {label}")
    labels, names = encode(values)
    return split_by_label(source, rows, labels, names)


def _image_column(root: Path, features: Any) -> str:
    import datasets

    found = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    if not found:
        raise DataError(f"{root} has no column of pictures: it has {', '.join(features)}")
    return "image" if "image" in found else found[0]


def _label_column(root: Path, features: Any) -> str:
    import datasets

    for name in LABEL_COLUMNS:
        if name in features:
            return name
    found = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if len(found) != 1:
        raise DataError(f"{root} has no column that is surely the label: it has {', '.join(features)}")
    return found[0]
