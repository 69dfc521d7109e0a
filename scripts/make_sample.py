"""Makes the bundled sample data set from the photographs of the Sign Language Digits Dataset.

    python scripts/make_sample.py SOURCE [DEST]

SOURCE is the data set's folder of class folders 0 ... 9 with its LICENSE; DEST is the zip file to
write, by default vitreous/assets/sign-language-digits.zip. In the zip: train/<class>/*.jpg,
val/<class>/*.jpg, README.txt and LICENSE. With the same Pillow, the same bytes every time.

The pictures come from https://github.com/ardamavi/Sign-Language-Digits-Dataset (Apache-2.0).
"""

import argparse
import hashlib
import io
import zipfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

DEST = Path(__file__).parents[1] / "vitreous" / "assets" / "sign-language-digits.zip"
DIGITS = "0123456789"
SIZE = 64  # pixels a side
QUALITY = 83  # of the JPEG: as high as the limit allows
LIMIT = 3_000_000  # bytes
VAL_PART = 0.2  # of the signers
EARLIEST = (1980, 1, 1, 0, 0, 0)  # a zip entry's time stamp; the same for all, so that the bytes repeat

README = """\
Sign Language Digits, small

{train} training and {val} validation photographs of hands showing the digits 0 to 9 in sign language.
They are divided by signer, {train_signers} in train/ and {val_signers} others in val/. The source names no signers:
each series of successive pictures of the ten digits counts as one.

From the Sign Language Digits Dataset, prepared by students of Turkey Ankara Ayrancı Anadolu High School,
https://github.com/ardamavi/Sign-Language-Digits-Dataset, Apache License 2.0 (see LICENSE).

Changes: the pictures were turned upright, shrunk to {size}x{size} pixels and encoded again as JPEG, without
their metadata, and were divided into train/ and val/. Labels are the original ones, mistakes included.
"""


class Photo(NamedTuple):
    number: int  # the camera's: it runs on over the classes
    digit: str
    path: Path


def find_photos(source: Path) -> list[Photo]:
    """All photographs of the class folders, in the order in which they were taken."""
    photos = [
        Photo(int(path.stem.removeprefix("IMG_")), d, path) for d in DIGITS for path in (source / d).glob("*.JPG")
    ]
    if not photos:
        raise SystemExit(f"{source} holds no 0/IMG_*.JPG ... 9/IMG_*.JPG: give the folder of the class folders")
    return sorted(photos)


def group_by_signer(photos: list[Photo]) -> list[list[Photo]]:
    """Cut the sequence of photographs into one run a signer.

    Each signer showed the ten digits, mostly in order. A new one begins when all ten have been
    seen, or with a second 0. Where digits were repeated, swapped, mislabelled or lost, this may
    leave two neighbours in one run, but does not cut a series in two. Nobody is named in the
    source, so a person who came back for a second series would count as two signers.
    """
    groups: list[list[Photo]] = []
    seen = set(DIGITS)
    for photo in photos:
        if seen == set(DIGITS) or (photo.digit == "0" and "0" in seen):
            groups.append([])
            seen = set()
        groups[-1].append(photo)
        seen.add(photo.digit)
    return groups


def split(groups: list[list[Photo]]) -> dict[str, list[list[Photo]]]:
    """Hold out the signers whose first picture's number has the smallest hashes."""

    def by_hash(group: list[Photo]) -> str:
        return hashlib.sha256(f"{group[0].number}".encode()).hexdigest()

    held_out = round(VAL_PART * len(groups))
    ordered = sorted(groups, key=by_hash)
    return {"train": ordered[held_out:], "val": ordered[:held_out]}


def shrink(path: Path) -> bytes:
    """One picture upright, SIZE x SIZE, antialiased, as JPEG."""
    with Image.open(path) as image:
        small = ImageOps.exif_transpose(image).convert("RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return buffer.getvalue()


def write_zip(dest: Path, files: dict[str, bytes]) -> None:
    """Write sorted entries, stored (a JPEG does not get smaller), beside `dest` and then in its place."""
    partial = dest.with_name(f"{dest.name}.partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EARLIEST)
            entry.create_system = 3  # Unix, wherever this runs
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name])
    if partial.stat().st_size > LIMIT:
        size = partial.stat().st_size
        partial.unlink()
        raise SystemExit(f"{dest} would be {size:,} bytes, more than {LIMIT:,}: lower QUALITY or SIZE")
    partial.replace(dest)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the bundled sample data set.")
    parser.add_argument("source", type=Path, help="folder of the class folders 0 ... 9 and the LICENSE")
    parser.add_argument("dest", type=Path, nargs="?", default=DEST, help="zip file to write (default: %(default)s)")
    options = parser.parse_args()

    parts = split(group_by_signer(find_photos(options.source)))
    photos = {part: [photo for group in groups for photo in group] for part, groups in parts.items()}
    files = {
        f"{part}/{photo.digit}/{photo.path.stem}.jpg": shrink(photo.path) for part in photos for photo in photos[part]
    }
    facts = {part: len(photos[part]) for part in photos} | {f"{part}_signers": len(parts[part]) for part in parts}
    files["README.txt"] = README.format(size=SIZE, **facts).encode()
    files["LICENSE"] = (options.source / "LICENSE").read_bytes()
    write_zip(options.dest, files)

    for part in photos:
        counts = Counter(photo.digit for photo in photos[part])
        print(f"{part}: {facts[part]} pictures of {facts[f'{part}_signers']} signers;", end=" ")
        print(", ".join(f"{digit}: {counts[digit]}" for digit in DIGITS))
    digest = hashlib.sha256(options.dest.read_bytes()).hexdigest()
    print(f"{options.dest}: {options.dest.stat().st_size:,} bytes, sha256 {digest}")


if __name__ == "__main__":
    main()
