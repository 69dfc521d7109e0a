"""Files from the web, fetched once: written beside their place, checked, renamed.

Half a file is therefore never taken for a whole one, and an interrupted download starts anew.
They lie under `VITREOUS_CACHE`, or the system's cache folder, by host and path, so that a
person can put one there by hand.
"""

import hashlib
import logging
import re
import sys
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from urllib.parse import SplitResult, urldefrag, urlsplit

from vitreous.base.errors import WeightsError
from vitreous.base.extras import need
from vitreous.base.files import cache_folder

logger = logging.getLogger("vitreous")

CHUNK = 1 << 20  # bytes
LOCAL = ("localhost", "127.0.0.1", "::1")


def fetch(url: str, source: str) -> Path:
    """The path of the file at `url`.

    Args:
        url: `https://...`, with `#sha256=...` at its end to insist on that very file.
        source: what the user asked for, to begin every message with.

    Raises:
        WeightsError: no such file, no network, a checksum that differs, or a missing package.
    """
    pooch = need("pooch", extra="hub", for_=f"{source}: downloading", error=WeightsError)
    url, checksum = _split_checksum(url, source)
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in LOCAL:
        raise WeightsError(f"{source}: what comes over http may have been altered on its way: use https")
    place = _place(parts, source, cache_folder("weights"))
    if place.exists() and (checksum is None or pooch.file_hash(str(place)) == checksum):
        return place
    logger.info("%s: downloading to %s", source, place)
    _download(url, place, checksum, source)
    if checksum is None:
        logger.info("to insist on this very file from now on: %s#sha256=%s", url, pooch.file_hash(str(place)))
    return place


def _download(url: str, place: Path, checksum: str | None, source: str) -> None:
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    known = checksum and f"sha256:{checksum}"
    with _Bar(place.name) if sys.stderr.isatty() else nullcontext(False) as bar:
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK)
        try:
            pooch.retrieve(url, known, place.name, place.parent, downloader=downloader)
        except requests.HTTPError as error:
            code = error.response.status_code if error.response is not None else "error"
            what = "there is no such file" if code == 404 else f"the server answers HTTP {code}"
            raise WeightsError(f"{source}: {what} at {url}") from None
        except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError):
            raise WeightsError(f"{source}: the transfer broke off, and nothing was kept: try again") from None
        except requests.RequestException as error:
            raise WeightsError(
                f"{source}: no network, {urlsplit(url).hostname} cannot be reached ({type(error).__name__}): "
                f"download {url} elsewhere and put it at {place}, or give the path of the file instead"
            ) from None
        except ValueError:  # pooch's word for a checksum that differs
            raise WeightsError(
                f"{source}: the file there has not the sha256 {checksum}: it was changed, or the checksum is wrong; "
                "nothing was kept"
            ) from None


def _split_checksum(url: str, source: str) -> tuple[str, str | None]:
    url, fragment = urldefrag(url)
    if not fragment:
        return url, None
    if not (found := re.fullmatch("sha256[=:]([0-9a-fA-F]{64})", fragment)):
        raise WeightsError(f"{source}: after # comes sha256= and 64 hexadecimal digits")
    return url, found[1].lower()


def _place(parts: SplitResult, source: str, cache: Path) -> Path:
    """HOST/FOLDERS/FILE under the cache; two queries of one address are told apart by a digest."""
    path = PurePosixPath(parts.path)
    if not path.name or any(part == ".." or re.search(r'[\\:*?"<>|]', part) for part in path.parts):
        raise WeightsError(f"{source}: the address names no file")
    name = f"{hashlib.sha256(parts.query.encode()).hexdigest()[:8]}-{path.name}" if parts.query else path.name
    host = parts.netloc.rpartition("@")[2].replace(":", "_")
    return cache.joinpath(host, *path.parts[1:-1], name)


class _Bar:
    """A progress bar in the form that pooch asks for: it sets `total`, then calls `update`, `reset` and `close`."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = (BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self.total = 0
        self._progress = Progress(f"{name[:24]:24}", *columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, count: int) -> None:
        self._progress.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()
