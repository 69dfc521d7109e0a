"""How many pictures a second come out ready for the model: beside timm, torchvision and Hugging Face.

JPEGs of 12 megapixels, as phones take them, and of 500 pixels, as ImageNet has them, are read,
resized to 224 pixels and normalised, by each library's own steps for its own ViT checkpoints and
by vitreous with the same steps; all in the same `DataLoader` with as many workers. The JPEGs are
made on the spot: noise with the spectrum of photographs, at their usual size in bytes.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Report, Sample, in_fresh_process, run_cases

KINDS = {"12 MP": (4000, 3000, 24), "500 px": (500, 375, 480)}  # width, height, how many
PEERS = ("timm", "torchvision", "huggingface")
OURS = {"vitreous": True, "vitreous, full decode": False}


def run(*, rounds: int, threads: int) -> Report:
    """Every size with every library's steps, by that library and by vitreous."""
    with tempfile.TemporaryDirectory() as folder:
        in_fresh_process("benchmarks.data:write_pictures", folder, threads=threads)
        cases = []
        for size in KINDS:
            for peer in PEERS:
                task = f"{size}, {peer}'s steps"
                for library, reduced in OURS.items():
                    if reduced or size == "12 MP":  # small ones are never reduced
                        arguments = (f"{folder}/{size}", threads, peer, reduced)
                        cases.append(Case(task, library, "benchmarks.data:vitreous", arguments))
                cases.append(Case(task, peer, f"benchmarks.data:{peer}", (f"{folder}/{size}", threads)))
        samples = run_cases(cases, rounds=rounds, threads=threads)
    ratios = _ratios(samples)
    return Report(
        name="data",
        settings={"rounds": rounds, "threads": threads, "ratios": ratios},
        samples=samples,
        columns={"pictures/s": (_rate, ".1f")},
        note="Pictures a second, in as many worker processes as threads, after a first round to warm up. By default "
        "vitreous decodes large JPEGs whole; with `reduced=True` at a fraction, which changes the result by less than "
        "half a level of 255 in the mean. " + "; ".join(f"{task}: {ratio:.1f} times" for task, ratio in ratios.items()),
    )


def _rate(sample: Sample) -> float:
    """Pictures a second, of the stage that says how many they were."""
    return next(int(stage.split()[0]) / taken["seconds"] for stage, taken in sample.items() if "pictures" in stage)


def _ratios(samples: list[tuple[Case, list[Sample]]]) -> dict[str, float]:
    """How many times the rate of the peer vitreous has, by the medians, for each task."""
    median = {(case.task, case.library): statistics.median(map(_rate, taken)) for case, taken in samples}
    tasks = dict.fromkeys(case.task for case, _ in samples)
    peer = {task: next(library for t, library in median if t == task and library not in OURS) for task in tasks}
    return {task: median[task, "vitreous"] / median[task, peer[task]] for task in tasks}


def vitreous(folder: str, workers: int, preset: str, reduced: bool) -> Iterator[str]:
    from functools import partial

    from vitreous.pictures.preprocess import Preprocess

    yield from _stages(folder, workers, partial(Preprocess.preset(preset).load, reduced=reduced))


def timm(folder: str, workers: int) -> Iterator[str]:
    from timm.data import create_transform
    from torchvision.datasets.folder import pil_loader  # as timm's own reader: open, convert to RGB

    transform = create_transform(224, interpolation="bicubic", crop_pct=0.9, mean=(0.5,) * 3, std=(0.5,) * 3)
    yield from _stages(folder, workers, lambda path: transform(pil_loader(path)))


def torchvision(folder: str, workers: int) -> Iterator[str]:
    from torchvision.datasets.folder import pil_loader
    from torchvision.models import ViT_B_16_Weights

    transform = ViT_B_16_Weights.IMAGENET1K_V1.transforms()
    yield from _stages(folder, workers, lambda path: transform(pil_loader(path)))


def huggingface(folder: str, workers: int) -> Iterator[str]:
    from PIL import Image
    from transformers import ViTImageProcessor

    processor = ViTImageProcessor()

    def prepare(path: Path) -> Any:
        with Image.open(path) as image:
            return processor(image, return_tensors="pt")["pixel_values"][0]

    yield from _stages(folder, workers, prepare)


def _stages(folder: str, workers: int, prepare: Callable[[Path], Any]) -> Iterator[str]:
    """One round to warm up workers and disk, then one that counts."""
    from torch.utils.data import DataLoader

    class Files:
        paths = sorted(Path(folder).iterdir())

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> Any:
            return prepare(self.paths[index])

    files = Files()
    loader: Any = DataLoader(files, batch_size=8, num_workers=workers, persistent_workers=workers > 0)  # type: ignore[arg-type]
    yield "import"
    assert {batch.shape[1:] for batch in loader} == {(3, 224, 224)}
    yield "warm-up"
    for _ in loader:
        pass
    yield f"{len(files)} pictures"


def write_pictures(folder: str) -> None:
    """JPEGs with the spectrum of photographs: amplitude falls with frequency (Field 1987)."""
    import numpy as np
    from PIL import Image

    numbers = np.random.default_rng(0)
    for name, (width, height, count) in KINDS.items():
        place = Path(folder) / name
        place.mkdir()
        frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
        frequency[0, 0] = 1
        planes = []
        for _ in range(3):
            noise = np.fft.rfft2(numbers.standard_normal((height, width)).astype(np.float32))
            plane = np.fft.irfft2(noise / frequency**1.2, (height, width))
            planes.append(plane / plane.std())
        shared, *colour = planes
        for i in range(count):
            mixed = np.stack([shared, shared + 0.3 * colour[0], shared + 0.3 * colour[1]], axis=-1)
            pixels = np.clip(120 + 45 * np.roll(mixed, (37 * i, 91 * i), axis=(0, 1)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{i:03}.jpg", quality=90)
