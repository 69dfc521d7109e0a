"""A pre-trained ViT as it is: its features of small pictures, computed once and kept, under a head in closed form."""

from pathlib import Path

from torch import Tensor

from scripts.studies.harness import ROOT, Numbers, note
from scripts.studies.parts import Parts
from vitreous import Classifier, load
from vitreous.data.dataset import Split
from vitreous.evaluation.features import extract
from vitreous.evaluation.ridge import fit

PRETRAINED = ROOT.parent / "shared" / "weights" / "dinov2-vits14-saliency.safetensors"
ORIGIN = {  # what a file does not say of itself
    PRETRAINED.name: "DINOv2's ViT-S/14: self-supervised, on 142 million pictures, distilled from a larger ViT that was trained\n"
    "on them in the same way (Oquab et al. 2024), and afterwards fine-tuned by others to find what stands out in a photograph"
}
GRID = 5  # patches a side that pictures are enlarged to: 70 pixels in patches of 14
CHUNK = 2_000  # pictures between two writes of the cache


def open_frozen(path: Path) -> Classifier:
    """The model for pictures of `GRID` x `GRID` patches, which it sees whole: so small, they have no border to spare."""
    h, w = load(path).model.config.patch_size
    clf = load(path, image_size=(GRID * h, GRID * w))
    return Classifier(clf.model, clf.preprocess.replace(crop_fraction=1.0), provenance=clf.provenance)


def features(clf: Classifier, split: Split, parts: Parts, name: str) -> Tensor:
    """(n, D) of what the model's own head would read, kept in a folder beside the file of `parts`."""
    cache = parts.path and parts.path.with_suffix(".features")

    def of(some: Split) -> Tensor:
        return extract(clf, some, cache=cache, num_workers=0, progress=False)

    for start in range(0, len(split), CHUNK) if cache else ():  # each is kept, and its time, before the next begins
        chunk = split.select(range(start, min(start + CHUNK, len(split))))
        key = f"{name}, features at {clf.preprocess.size[0]} pixels, {split.root.name} from {start}, {len(chunk)} pictures"
        parts.get(key, lambda chunk=chunk: len(of(chunk)))  # type: ignore[misc]
        note(key)
    return of(split)


def probe(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: int) -> float:
    """Accuracy, %, of ridge regression on (n, D) features and (n,) classes."""
    head = fit(*train, classes)
    return 100 * float((head.logits(test[0]).argmax(dim=1) == test[1]).double().mean())


def describe(clf: Classifier, path: Path) -> Numbers:
    """What a page says of the model."""
    c = clf.model.config
    return {
        "name": path.name,
        "blocks": c.num_layers,
        "width": c.hidden_size,
        "patches": c.num_patches,
        "image_size": c.image_size[0],
        "params": sum(p.numel() for p in clf.model.parameters()),
    }
