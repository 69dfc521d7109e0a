"""Which pictures are learned from, and which are kept to measure with."""

from vitreous.base.errors import DataError
from vitreous.data.dataset import DataSet, Split


def train_and_held_out(dataset: DataSet, val_fraction: float, seed: int) -> tuple[Split, Split | None]:
    """The training split, and the pictures to measure with: the data set's own, or a share held out by name.

    Args:
        dataset: its `val` is measured with, else its `test`; where it has neither, a share is held out.
        val_fraction: the share held out of every class, from 0 up to but not 1; with 0 nothing is.
        seed: which pictures are held out.

    Returns:
        (training, held out), both with the classes of training; None where nothing is held out.

    Raises:
        DataError: no training pictures, fewer than two classes, or a class to measure that training lacks.
    """
    held_out = dataset.splits.get("val") or dataset.splits.get("test")
    train = dataset.splits.get("train") or dataset.splits.get("all")
    if train is None:
        raise DataError(f"{dataset.root} has no training pictures: it has {', '.join(dataset.splits)}")
    if len(train.classes) < 2:
        raise DataError(f"{dataset.root} has only the class {train.classes[0]!r}: two folders at least are needed")
    if held_out is not None:
        return train, held_out.with_classes(train.classes)
    if not val_fraction:
        return train, None
    return train.hold_out(val_fraction, seed)
