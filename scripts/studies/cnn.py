"""A CNN to compare with: torchvision's ResNet, trained by the same loop on the same pictures."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from vitreous.base.errors import ConfigError, DataError
from vitreous.base.seeds import derive, seeded
from vitreous.data.dataset import DataSet, Split
from vitreous.data.loading import EvaluationPictures, batches
from vitreous.data.open import open_data
from vitreous.data.partition import train_and_held_out
from vitreous.model import evaluating
from vitreous.pictures.preprocess import Preprocess
from vitreous.training.loop import How, Loop
from vitreous.training.recipe import Recipe

RESNET18 = (2, 2, 2, 2)


def resnet(num_classes: int, blocks: Sequence[int] = RESNET18, *, small_images: bool = False) -> nn.Module:
    """A ResNet of basic blocks, images (B, 3, H, W) -> logits (B, K), with torchvision's initialisation.

    Args:
        num_classes: K.
        blocks: of each stage, one to four of them; a stage halves the resolution of the one before
            and doubles its 64 channels. ResNet-18 by default.
        small_images: begin with a 3 x 3 convolution and no pooling, instead of reducing 4 times, as
            is usual at 32 pixels.

    Source: He et al. 2016, table 1 and section 4.2; torchvision `models/resnet.py`.
    """
    from torchvision.models.resnet import BasicBlock, ResNet

    if not 1 <= len(blocks) <= 4 or min(blocks) < 1:
        raise ConfigError(f"blocks must be one to four numbers >= 1, got {tuple(blocks)}")
    model = ResNet(BasicBlock, [*blocks, *(1,) * (4 - len(blocks))], num_classes=num_classes)
    for stage in range(len(blocks), 4):
        setattr(model, f"layer{stage + 1}", nn.Identity())
    model.fc = nn.Linear(64 * 2 ** (len(blocks) - 1), num_classes)
    if small_images:
        model.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model


def train_cnn(
    data: str | Path | DataSet,
    out: str | Path,
    recipe: str | Path | Recipe = "scratch",
    *,
    preprocess: Preprocess,
    blocks: Sequence[int] = RESNET18,
    small_images: bool = False,
    num_workers: int | None = None,
    progress: bool = True,
) -> tuple[nn.Module, float]:
    """Train a ResNet from random weights, as `pretrain` does a ViT: same data, order, crops, schedule and seeds.

    Args:
        data: a folder, zip, ...; without a val or test split a share is held out.
        out: folder for the state and the log of the run; an earlier run there is gone on with.
        recipe: a name, a TOML file, or a `Recipe`.
        preprocess: size and normalisation.
        blocks, small_images: of `resnet`.

    Returns:
        The trained model, and its accuracy on the held-out pictures.
    """
    settings = Recipe.load(recipe)
    dataset = open_data(data)
    train, val = train_and_held_out(dataset, settings.val_fraction, settings.seed)
    if val is None:
        raise DataError(f"{dataset.root}: no pictures are held out to measure with: set val_fraction")
    with seeded(derive(settings.seed, "weights")):
        model = resnet(len(train.classes), blocks, small_images=small_images)
    Path(out).mkdir(parents=True, exist_ok=True)
    identity = {"recipe": settings.to_dict(), "classes": list(train.classes), "blocks": list(blocks)}
    loop = Loop(
        model=model,
        split=train,
        preprocess=preprocess,
        recipe=settings,
        out=Path(out),
        identity=identity,
        evaluate=lambda: {"val_top1": accuracy(model, val, preprocess, num_workers)},
        how=How(resume=False, num_workers=num_workers, progress=progress),
    )
    loop.run()
    return model, accuracy(model, val, preprocess, num_workers)


@torch.inference_mode()
def accuracy(model: nn.Module, split: Split, preprocess: Preprocess, num_workers: int | None = None) -> float:
    """The share of pictures that any model of logits puts right, each counted once, prepared as for `evaluate`."""
    correct = 0
    pictures = EvaluationPictures(split, preprocess.load)
    with evaluating(model):
        for images, labels in batches(pictures, range(len(split)), 64, num_workers):
            correct += int((model(images).argmax(dim=1) == labels).sum())
    return correct / len(split)
