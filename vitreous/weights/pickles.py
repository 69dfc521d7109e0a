"""`torch.save` files, opened without running anything in them.

Only torch's restricted unpickler is used, which makes tensors and plain containers and refuses
everything else; a pickle in full can run any code.
"""

import argparse
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from vitreous.base.errors import WeightsError


def read_pickle(path: Path) -> tuple[Any, bool]:
    """What a `torch.save` file holds, and whether its tensors are parts of the mapped file.

    Besides tensors and containers, `argparse.Namespace` is let through: training scripts store
    their arguments so, and it holds nothing but attributes.

    Raises:
        WeightsError: when it is not whole, or holds objects that could run code.
    """
    # torch itself takes what is called .safetensors for such, unless it is given an open file
    mapped = _is_zip(path) and path.suffix != ".safetensors"
    if _is_zip(path):
        _check_archive(path)
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]), path.open("rb") as file:
            warnings.simplefilter("ignore")  # of old protocols; what matters is raised
            return torch.load(path if mapped else file, map_location="cpu", weights_only=True, mmap=mapped), mapped
    except pickle.UnpicklingError as error:
        raise WeightsError(_refusal(path, str(error))) from None
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in torch or in the unpickler
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        raise WeightsError(f"{path} is not a whole torch file ({reason}): download or copy it again") from None


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _check_archive(path: Path) -> None:
    """Refuse sizes that the file cannot hold, and compiled code, before torch takes any memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
        raise WeightsError(f"{path} is not a whole torch file ({error}): download or copy it again") from None
    if any("/code/" in entry.filename or entry.filename.endswith("/constants.pkl") for entry in entries):
        raise WeightsError(
            f"{path} is a TorchScript archive, compiled code and not weights alone: save the `state_dict()` of the "
            "model that it was made of as .safetensors"
        )
    claimed = sum(entry.file_size for entry in entries)
    if claimed > path.stat().st_size:
        raise WeightsError(f"{path} claims {claimed:,} bytes of content, more than the file can hold")


def _refusal(path: Path, message: str) -> str:
    """What torch's unpickler met: something that it does not make, or bytes that are no pickle."""
    if "GLOBAL" not in message and "Unsupported" not in message:
        reason = message.rpartition("error: ")[2].strip().split("\n")[0][:200]
        return f"{path} is not a whole torch file ({reason}): download or copy it again"
    name = re.search(r"GLOBAL ([\w.]+)", message)
    what = f" ({name[1]})" if name else ""
    return (
        f"{path} holds pickled Python objects{what}, which can run code: not opened. Take the model's .safetensors "
        "file; or, if you trust whoever made this one, open it where it may do no harm and save only its tensors "
        "with safetensors.torch.save_file"
    )
