"""Open a data set, whatever it comes as."""

from pathlib import Path

from vitreous.base.errors import DataError
from vitreous.data.archive import open_tar, open_zip, scan_tar
from vitreous.data.dataset import DataSet
from vitreous.data.folder import is_picture, list_folder, open_folder
from vitreous.data.huggingface import HUB, is_saved, open_files, open_hub, open_saved
from vitreous.data.manifest import SUFFIXES, is_manifest, open_manifest
from vitreous.data.shards import expand, is_pattern, is_shard, open_shards


def open_data(source: str | Path | DataSet) -> DataSet:
    """Open labelled pictures.

    Args:
        source: a data set that is open already, which is returned as it is, or one of
            a folder of class folders, `DATA/CLASS/picture.jpg`, or `DATA/train/CLASS/picture.jpg`
            with `val` and `test` beside it;
            a zip or a tar of those, read in place;
            a manifest, `.csv`, `.tsv` or `.parquet`, of `path,label[,split]`;
            WebDataset shards: a folder of tars, one tar, or a pattern such as `train-{000..127}.tar`;
            a Hugging Face data set: `hf:owner/name`, a folder that `save_to_disk` wrote, or one of
            Parquet or Arrow files.

    Raises:
        DataError: no such path, nothing in it, or an order that cannot be understood.
    """
    if isinstance(source, DataSet):
        return source
    data = open_as_it_is(source)
    if loose := data.left_out.loose:
        raise DataError(
            f"{data.root / loose[0]} lies in no class folder: put every picture into a folder named after its class"
        )
    return data


def open_as_it_is(source: str | Path | DataSet) -> DataSet:
    """`open_data`, but pictures in no class folder are left out, and listed, instead of refused."""
    if isinstance(source, DataSet):
        return source
    text = str(source)
    if text.startswith(HUB):
        return open_hub(text)
    root = Path(source)
    if not root.exists():
        if is_pattern(text):
            paths = expand(text)
            return open_shards(_common_folder(paths), paths)
        raise DataError(f"{root}: no such file or folder")
    return _open_folder(root) if root.is_dir() else _open_file(root)


def _open_folder(root: Path) -> DataSet:
    if is_saved(root):
        return open_saved(root)
    listing = list_folder(root)
    if not any(map(is_picture, listing.files)):
        if shards := [root / name for name in listing.files if name.endswith(".tar")]:
            return open_shards(root, shards)
        if any(name.endswith((".parquet", ".arrow")) for name in listing.files):
            return open_files(root)
    return open_folder(root, listing)


def _open_file(path: Path) -> DataSet:
    kind = path.suffix.lower()
    if kind == ".arrow" or (kind == ".parquet" and not is_manifest(path)):
        return open_files(path)
    if kind in SUFFIXES:
        return open_manifest(path)
    if kind in (".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst"):
        members = scan_tar(path)
        return open_shards(path, [path]) if is_shard(members) else open_tar(path, members)
    return open_zip(path)


def _common_folder(paths: list[Path]) -> Path:
    """The innermost folder that all paths lie in."""
    folder = paths[0].parent
    while not all(path.is_relative_to(folder) for path in paths):
        folder = folder.parent
    return folder
