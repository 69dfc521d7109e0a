"""Tables of predictions: one row a guess, as CSV, JSON or Parquet."""

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.base import processes
from vitreous.base.errors import ConfigError, ImageError, did_you_mean
from vitreous.base.extras import need
from vitreous.base.files import atomic_path, write_text
from vitreous.base.progress import progress as progress_bar
from vitreous.bulk.pictures import find_pictures
from vitreous.prediction import BATCH, Prediction, Predictor

COLUMNS = ("picture", "rank", "label", "index", "probability")
FORMATS = ("csv", "json", "parquet")


@dataclass
class Predictions:
    """What a model said of many pictures.

    Args:
        found: each picture with its guesses, best first.
        failed: each picture that could not be read, with the reason.
    """

    found: list[tuple[str, list[Prediction]]] = field(default_factory=list)
    failed: list[tuple[str, ImageError]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.found)

    def rows(self) -> list[dict[str, Any]]:
        """One row a guess: `COLUMNS`, with rank 1 for the most probable class."""
        return [
            dict(zip(COLUMNS, (name, rank, p.label, p.index, p.probability), strict=True))
            for name, guesses in self.found
            for rank, p in enumerate(guesses, start=1)
        ]

    def to_csv(self) -> str:
        """The rows as CSV with a header."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def to_json(self) -> str:
        """The rows as a JSON list."""
        return json.dumps(self.rows(), indent=1, ensure_ascii=False) + "\n"

    def save(self, path: str | Path, format: str | None = None) -> None:
        """Write all rows to a file, whole or not at all.

        Args:
            path: the file.
            format: `"csv"`, `"json"` or `"parquet"`; None for what the file's name ends in.

        Raises:
            ConfigError: a format that there is not.
        """
        path = Path(path)
        format = format or path.suffix.lstrip(".").lower()
        if format == "csv":
            write_text(path, self.to_csv())
        elif format == "json":
            write_text(path, self.to_json())
        elif format == "parquet":
            self._to_parquet(path)
        else:
            raise ConfigError(f"{path}: unknown format {format!r}{did_you_mean(format, FORMATS)}: {', '.join(FORMATS)}")

    def _to_parquet(self, path: Path) -> None:
        pyarrow = need("pyarrow", extra="parquet", for_="Parquet")
        parquet = need("pyarrow.parquet", extra="parquet", for_="Parquet")
        types = (pyarrow.string(), pyarrow.int64(), pyarrow.string(), pyarrow.int64(), pyarrow.float64())
        schema = pyarrow.schema(list(zip(COLUMNS, types, strict=True)))
        with atomic_path(path) as part:
            parquet.write_table(pyarrow.Table.from_pylist(self.rows(), schema), part)


def predict_all(
    predictor: Predictor,
    pictures: Iterable[str | Path],
    *,
    top_k: int = 5,
    batch_size: int = BATCH,
    num_workers: int | None = None,
    progress: bool = True,
) -> Predictions:
    """Say what is in many pictures; those that cannot be read do not stop the others.

    Under `torchrun` each process takes a share of them, and all return the same.

    Args:
        predictor: a classifier, a compiled one, or an exported file.
        pictures: files, and folders of them.
        top_k: guesses for each picture.
        batch_size: pictures computed at once.
        num_workers: threads that decode; None for half of the cores.
        progress: whether a bar on stderr shows how far it is.

    Raises:
        ImageError: a path that does not exist, or a folder without pictures.
        WeightsError: a model without a trained head.
    """
    paths = find_pictures(pictures)
    own = processes.share(len(paths))
    mine = paths[own.start : own.stop]
    part = Predictions()
    show = progress and processes.is_first() and len(mine) > batch_size
    said = predictor.predict_each(mine, top_k, batch_size, num_workers)
    with progress_bar("predicting", len(mine), show=show) as advance:
        for path, guesses in zip(mine, said, strict=True):
            if isinstance(guesses, ImageError):
                part.failed.append((str(path), guesses))
            else:
                part.found.append((str(path), guesses))
            advance(1)
    whole = Predictions()
    for other in processes.gather(part):
        whole.found += other.found
        whole.failed += other.failed
    return whole
