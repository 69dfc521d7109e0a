"""From a source to a path: `hf:owner/name`, `https://...` and `google:NAME` are fetched once and kept.

Files from the Hugging Face hub lie where `huggingface_hub` keeps them, with its own rules for
revisions, tokens and work without a network. All others are the business of `download.py`.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vitreous.base.errors import WeightsError
from vitreous.base.extras import need
from vitreous.weights import catalog, download

GOOGLE = "https://storage.googleapis.com/vit_models/"
CONFIGS = ("config.json", "preprocessor_config.json")
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
HTTP_LIBRARIES = ("httpcore", "httpcore2", "httpx", "httpx2", "requests", "urllib3")  # by version of huggingface_hub
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin")


def fetch(source: str | Path) -> Path:
    """Where the file or folder of a source lies, fetched first if need be; a path is itself.

    Args:
        source: a path; `hf:owner/name`, `hf:owner/name@revision` or `hf:owner/name/FILE` on the
            Hugging Face hub; `https://...`, with `#sha256=...` to insist on that very file; or
            `google:NAME` of an official checkpoint, as `vitreous models` lists them.

    Raises:
        WeightsError: no such source, no network, a checksum that differs, or a missing package.
    """
    text = str(source)
    if text.startswith("hf:"):
        return _from_hugging_face(text)
    if text.startswith("google:"):
        path = catalog.resolve(text.removeprefix("google:"))
        return download.fetch(f"{GOOGLE}{quote(path, safe='/+')}.npz", text)
    if re.match("https?://", text):
        return download.fetch(text, text)
    return Path(source)


def _from_hugging_face(source: str) -> Path:
    name, _, revision = source.removeprefix("hf:").partition("@")
    parts = name.split("/", 2)
    if len(parts) < 2 or not all(parts):
        raise WeightsError(f"{source}: write hf:owner/name, hf:owner/name@revision or hf:owner/name/FILE")
    hub = need("huggingface_hub", extra="hub", for_=f"{source}: the Hugging Face hub", error=WeightsError)
    where: dict[str, Any] = dict(repo_id="/".join(parts[:2]), revision=revision or None)
    with _errors_named(source, where["repo_id"]), _quiet_in_files():
        if len(parts) == 3:
            return Path(hub.hf_hub_download(filename=parts[2], **where))
        for patterns in (SAFETENSORS, PICKLES):  # pickles, which need care, only where there is nothing else
            folder = Path(hub.snapshot_download(allow_patterns=[*CONFIGS, *patterns], **where))
            if any(True for pattern in patterns for _ in folder.glob(pattern)):
                return folder
    raise WeightsError(
        f"{source} holds neither {SAFETENSORS[0]} nor {PICKLES[0]}: name the file, as in hf:{where['repo_id']}/FILE"
    )


@contextmanager
def _errors_named(source: str, repository: str) -> Iterator[None]:
    """What `huggingface_hub` raises, in one line with the way out."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        way = f"accept its terms at https://huggingface.co/{repository} and log in with `hf auth login`"
        raise WeightsError(f"{source} is only for those who accepted its terms: {way}") from None
    except errors.RepositoryNotFoundError:
        raise WeightsError(f"{source}: no such repository, or a private one: log in with `hf auth login`") from None
    except errors.RevisionNotFoundError:
        raise WeightsError(f"{source}: {repository} has no such revision") from None
    except errors.LocalEntryNotFoundError as error:
        offline = isinstance(error.__cause__, errors.OfflineModeIsEnabled) or "HF_HUB_OFFLINE" in str(error)
        why = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached"
        raise WeightsError(
            f"{source} is not in the cache, and {why}: run `hf download {repository}` where there is a network, "
            "or give the path of a folder with its files instead"
        ) from None
    except errors.EntryNotFoundError:
        raise WeightsError(f"{source}: {repository} has no such file") from None
    except (errors.HFValidationError, errors.HfHubHTTPError) as error:
        raise WeightsError(f"{source}: {' '.join(str(error).split())}") from None
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if library not in HTTP_LIBRARIES and not (isinstance(error, OSError) and error.filename is None):
            raise  # the disk, or a mistake of ours
        raise WeightsError(
            f"{source}: the transfer broke off ({type(error).__name__}), and only whole files were kept: try again"
        ) from None


@contextmanager
def _quiet_in_files() -> Iterator[None]:
    """Progress bars on a terminal alone."""
    from huggingface_hub import utils

    quieten = not sys.stderr.isatty() and not utils.are_progress_bars_disabled()
    if quieten:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        if quieten:
            utils.enable_progress_bars()
