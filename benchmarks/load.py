"""How long, and with how much memory, ViT-B/16 comes out of a file: beside timm, transformers and torchvision.

Random weights are made on the spot, each file by the library whose format it is. The files are
warm in the system's cache. Until the first logits are there counts too, because a file that is
mapped is only read when its numbers are used.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Report, in_fresh_process, run_cases

CASES = (  # what the file is, and who reads it beside us
    ("google .npz", "google.npz", "timm", "timm_npz"),
    ("Hugging Face", "huggingface", "transformers", "transformers"),
    ("timm .safetensors", "timm.safetensors", "timm", "timm"),
    ("timm .pth", "timm.pth", "timm", "timm"),
    ("torchvision .pth", "torchvision.pth", "torchvision", "torchvision"),
)


def run(*, rounds: int, threads: int) -> Report:
    """Every format with every library that reads it."""
    with tempfile.TemporaryDirectory() as folder:
        weights = in_fresh_process("benchmarks.load:write_files", folder, threads=threads)
        cases = [Case("native", "vitreous", "benchmarks.load:vitreous", (f"{folder}/native.safetensors",))]
        for task, file, library, function in CASES:
            path = f"{folder}/{file}"
            cases.append(Case(task, "vitreous", "benchmarks.load:vitreous", (path,)))
            cases.append(Case(task, library, f"benchmarks.load:{function}", (path,)))
        samples = run_cases(cases, rounds=rounds, threads=threads)
    return Report(
        name="load",
        settings={"rounds": rounds, "threads": threads, "weight_bytes": weights},
        samples=samples,
        columns={
            "import s": (lambda s: s["import"]["seconds"], ".2f"),
            "load s": (lambda s: s["load"]["seconds"], ".2f"),
            "logits s": (lambda s: s["load"]["seconds"] + s["logits"]["seconds"], ".2f"),
            "copies": (lambda s: s["logits"]["peak_bytes"] / weights, ".2f"),
        },
        note="import: of the library; load: to a model ready to run; logits: load, and one picture through the model; "
        f"copies: the most memory until then over that after the imports, in copies of the weights "
        f"({weights / 2**20:.0f} MB each).",
    )


def vitreous(path: str) -> Iterator[str]:
    import torch

    from vitreous.classifier import load

    yield "import"
    model = load(path).model
    yield "load"
    yield from _logits(torch, model)


def timm(path: str) -> Iterator[str]:
    import timm
    import torch

    yield "import"
    model = timm.create_model("vit_base_patch16_224", checkpoint_path=path).eval()
    yield "load"
    yield from _logits(torch, model)


def timm_npz(path: str) -> Iterator[str]:
    import timm
    import torch

    yield "import"
    model = timm.create_model("vit_base_patch16_224").eval()
    model.load_pretrained(path)  # type: ignore[operator]
    yield "load"
    yield from _logits(torch, model)


def transformers(path: str) -> Iterator[str]:
    import torch
    from transformers import ViTForImageClassification

    yield "import"
    model = ViTForImageClassification.from_pretrained(path).eval()
    yield "load"
    yield from _logits(torch, model)


def torchvision(path: str) -> Iterator[str]:
    import torch
    from torchvision.models import vit_b_16

    yield "import"
    model = vit_b_16().eval()
    model.load_state_dict(torch.load(path, weights_only=True))
    yield "load"
    yield from _logits(torch, model)


def _logits(torch: Any, model: Any) -> Iterator[str]:
    with torch.inference_mode():
        model(torch.zeros(1, 3, 224, 224))
    yield "logits"


def write_files(folder: str) -> int:
    """One random B/16 in each format, each written by its own library; the bytes of its weights."""
    import timm
    import torch
    from safetensors.torch import save_file
    from torchvision.models import vit_b_16
    from transformers import ViTConfig as Config
    from transformers import ViTForImageClassification

    from vitreous.classifier import Classifier
    from vitreous.config import ViTConfig
    from vitreous.model import VisionTransformer
    from vitreous.pictures.preprocess import Preprocess
    from vitreous.weights import google

    root = Path(folder)
    ours = VisionTransformer(ViTConfig())
    torch.nn.init.normal_(ours.head.weight)  # type: ignore[union-attr]
    Classifier(ours, Preprocess()).save(root / "native.safetensors")
    google.write(root / "google.npz", ours.config, ours.state_dict())
    theirs = timm.create_model("vit_base_patch16_224").state_dict()
    save_file(theirs, root / "timm.safetensors", {"format": "pt"})
    torch.save(theirs, root / "timm.pth")
    torch.save(vit_b_16().state_dict(), root / "torchvision.pth")
    ViTForImageClassification(Config.from_dict({"num_labels": 1000})).save_pretrained(root / "huggingface")
    return sum(parameter.nbytes for parameter in ours.parameters())
