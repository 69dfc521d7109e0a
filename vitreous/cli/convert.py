"""`vitreous convert`: hand a model on to another library."""

from pathlib import Path
from typing import Annotated

import typer

from vitreous.cli.arguments import ImageSize, Model, NumClasses, Weights
from vitreous.cli.opening import classifier
from vitreous.cli.output import results


def convert(
    source: Model,
    dest: Annotated[
        Path, typer.Argument(help="What to write: a file, or for huggingface a folder.", show_default=False)
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Whose code is to read it: google, timm, huggingface, torchvision, mmpretrain, or native.",
            show_default=False,
        ),
    ],
    image_size: ImageSize = None,
    num_classes: NumClasses = None,
    weights: Weights = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Also where that code computes a little differently.")
    ] = False,
) -> None:
    """Write a model in the names and layout of another library, with the same logits.

    What that library does not keep is said on stderr; what it cannot express at all is refused with the reason.
    """
    from vitreous.weights.convert import convert as write

    clf = classifier(source, image_size=image_size, num_classes=num_classes, weights=weights, device="cpu")
    write(clf, dest, to=to, allow_changes=allow_changes)
    results.print(str(dest), soft_wrap=True, markup=False)
