"""Arguments that several commands share, so that they are called and explained the same everywhere."""

import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Model = Annotated[
    str,
    typer.Argument(
        help="A model file or folder, hf:owner/name, google:NAME, https://... or vitreous:NAME.", show_default=False
    ),
]
Data = Annotated[
    Path,
    typer.Argument(
        help="Pictures with classes: class folders, zip or tar, a CSV, JSON or Parquet list, CIFAR-10, a Hub data set.",
        show_default=False,
    ),
]
Image = Annotated[Path, typer.Argument(help="A picture.", show_default=False)]
Out = Annotated[Path, typer.Option("--out", help="Folder for everything that is written.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=0, help="Processes that decode pictures; half of the cores, 0 on two.", show_default=False
    ),
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Pictures computed at once.")]
Device = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda, cuda:1, mps; the fastest there is.", show_default=False),
]
BatchSizeOfRecipe = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, help="Pictures of a step; the recipe's.", show_default=False),
]
SeedOfRecipe = Annotated[
    int | None,
    typer.Option("--seed", help="Seed of everything drawn at random; the recipe's.", show_default=False),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn at random.")]
NumClasses = Annotated[
    int | None,
    typer.Option(
        "--num-classes", min=0, help="A new head of so many classes; 0 for the backbone alone.", show_default=False
    ),
]


class Precision(str, enum.Enum):
    """The numbers that are computed with."""

    float32 = "float32"
    bfloat16 = "bfloat16"


PrecisionOption = Annotated[
    Precision | None, typer.Option("--precision", help="What is computed with.", show_default="float32")
]


class Engine(str, enum.Enum):
    """What computes."""

    auto = "auto"
    torch = "torch"
    torch_compile = "torch.compile"
    onnxruntime = "onnxruntime"
    openvino = "openvino"


Runtime = Annotated[
    Engine | None,
    typer.Option("--runtime", help="auto: the fastest of those installed, by measurement.", show_default=False),
]
MeasureAgain = Annotated[
    bool, typer.Option("--measure-again", help="With --runtime auto: forget what was measured before.")
]
RecipeName = Annotated[str, typer.Option("--recipe", help="A named recipe, or a .toml file.")]
Steps = Annotated[
    int | None, typer.Option("--steps", help="Training steps; the warm-up scales along.", show_default=False)
]
ImageSize = Annotated[
    str | None,
    typer.Option("--image-size", help="Pixels to take: 384, or 192x320 (height x width).", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a value of the recipe, e.g. --set base_lr=0.01.", show_default=False),
]
Weights = Annotated[
    str | None,
    typer.Option("--weights", help="raw or ema, of a file that holds both; raw unless asked.", show_default=False),
]
Strategy = Annotated[str, typer.Option("--strategy", help="On several processes (torchrun): ddp or fsdp.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Write curves into OUT/tensorboard.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out where it stopped.")]


def kind_of_weights(text: str | None) -> Literal["raw", "ema"] | None:
    """The value of `--weights`."""
    return one_of(text, "raw", "ema", option="--weights")


def one_of(text: str | None, *allowed: str, option: str) -> Any:
    """The value of an option that takes a few words."""
    if text is not None and text not in allowed:
        raise typer.BadParameter(f"{option} takes {' or '.join(allowed)}, not {text!r}")
    return text


def parse_size(text: str | None) -> tuple[int, int] | None:
    """`"384"` or `"192x320"` as (height, width)."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.strip().isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r} is not a size: write 384, or 192x320 (height x width)")
    numbers = [int(part) for part in parts]
    return numbers[0], numbers[-1]
