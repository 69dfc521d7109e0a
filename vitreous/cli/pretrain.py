"""`vitreous pretrain`: train from random weights."""

from typing import Annotated

import typer

from vitreous.cli.arguments import (
    Data,
    ImageSize,
    Json,
    Out,
    RecipeName,
    Resume,
    Settings,
    Steps,
    Strategy,
    TensorBoard,
    Workers,
    parse_size,
)
from vitreous.cli.finetune import devices, overrides, report


def pretrain(
    name: Annotated[str, typer.Argument(help="A named variant, such as Ti/16.", show_default=False)],
    data: Data,
    out: Out,
    recipe: RecipeName = "scratch",
    steps: Steps = None,
    image_size: ImageSize = None,
    patch_size: Annotated[
        str | None, typer.Option("--patch-size", help="Instead of the variant's: 8, or 8x16.", show_default=False)
    ] = None,
    set: Settings = None,
    resume: Resume = False,
    workers: Workers = None,
    strategy: Strategy = "ddp",
    tensorboard: TensorBoard = False,
    json: Json = False,
) -> None:
    """Train a model from random weights, and measure it on held-out pictures.

    A ViT needs many pictures to learn from nothing: with a few thousand, fine-tune a trained one instead.
    """
    settings = {**overrides(steps, None, set), **devices(strategy, tensorboard)}
    from vitreous.config import ViTConfig
    from vitreous.training.run import pretrain as run

    sizes = {"image_size": parse_size(image_size), "patch_size": parse_size(patch_size)}
    config = ViTConfig.from_name(name, **{key: size for key, size in sizes.items() if size is not None})
    report(run(config, data, out, recipe, resume=resume, num_workers=workers, **settings), json)
