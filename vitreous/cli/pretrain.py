"""`vitreous pretrain`: train from random weights."""

from typing import Annotated

import typer

from vitreous.cli.arguments import (
    BatchSizeOfRecipe,
    Data,
    Device,
    ImageSize,
    Json,
    Out,
    PrecisionOption,
    RecipeName,
    Resume,
    SeedOfRecipe,
    Settings,
    Steps,
    Strategy,
    TensorBoard,
    Workers,
    parse_size,
)
from vitreous.cli.finetune import how, overrides, report


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
    batch_size: BatchSizeOfRecipe = None,
    precision: PrecisionOption = None,
    seed: SeedOfRecipe = None,
    set: Settings = None,
    resume: Resume = False,
    workers: Workers = None,
    device: Device = None,
    strategy: Strategy = "ddp",
    tensorboard: TensorBoard = False,
    json: Json = False,
) -> None:
    """Train a model from random weights, and measure it on held-out pictures.

    A ViT needs many pictures to learn from nothing: with a few thousand, fine-tune a trained one instead.
    """
    settings = {
        **overrides(set, steps=steps, batch_size=batch_size, precision=precision, seed=seed),
        **how(strategy, device, tensorboard),
    }
    from vitreous.config import ViTConfig
    from vitreous.training.run import pretrain as run

    sizes = {"image_size": parse_size(image_size), "patch_size": parse_size(patch_size)}
    config = ViTConfig.from_name(name, **{key: size for key, size in sizes.items() if size is not None})
    report(run(config, data, out, recipe, resume=resume, num_workers=workers, **settings), json)
