"""The bundled model, `vitreous:mini`: a small ViT from random weights on CIFAR-10, in half precision.

    python -m scripts.make_mini --data FOLDER --out RUN

FOLDER holds train.zip and test.zip, zips of class folders. Two stretches: the first holds out a tenth of the training
pictures, to choose by; the second goes on with all of them and is measured on the test pictures, which choose nothing.
Stopped at any moment, the same command goes on from there. Recipes and logs are kept in docs/mini.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from scripts.studies.harness import ROOT
from vitreous import Classifier, Preprocess, ViTConfig, finetune, load, pretrain
from vitreous.data.dataset import DataSet
from vitreous.data.open import open_data
from vitreous.training.loop import STATE
from vitreous.training.run import TrainingResult

ASSET = ROOT / "vitreous" / "assets" / "mini.safetensors"
LOG = ROOT / "docs" / "mini"
EVERY = 40  # steps: what is kept of the log
CONFIG = ViTConfig(
    image_size=32, patch_size=8, hidden_size=192, num_layers=6, num_heads=3, mlp_dim=768, representation_size=192
)
PREPROCESS = Preprocess(  # with the mean and deviation of CIFAR-10's training pictures
    size=(32, 32), antialias=True, mean=(0.491, 0.482, 0.447), std=(0.247, 0.243, 0.262)
)
# The model still learns at the end of the first stretch, so a second one warms up again; narrower crops, as pictures
# cut to less than half teach little more.
SECOND: dict[str, Any] = {"steps": 6240, "warmup_steps": 200, "eval_every": 1560, "crop_area": (0.5, 1.0)}


def read(folder: Path) -> DataSet:
    """CIFAR-10 as its two zips."""
    splits = {part: next(iter(open_data(folder / f"{part}.zip").splits.values())) for part in ("train", "test")}
    return DataSet(folder, splits)


def learn(folder: Path, out: Path, steps: int | None = None) -> TrainingResult:
    """Both stretches, each going on where it was stopped."""
    first, second = out / "first", out / "second"
    fewer = {} if steps is None else {"steps": steps, "warmup_steps": 0}
    if not (first / "model.safetensors").exists():
        resume = (first / STATE).exists()
        pretrain(CONFIG, folder / "train.zip", first, "mini", preprocess=PREPROCESS, resume=resume, **fewer)
    start = load(first / "model.safetensors")
    return finetune(start, read(folder), second, "mini", resume=(second / STATE).exists(), **(SECOND | fewer))


def halve(clf: Classifier) -> Classifier:
    """The same with its weights in half precision, and a provenance that names no folder."""
    return Classifier(clf.model.half(), clf.preprocess, clf.labels, _without_folders(clf.provenance))


def _without_folders(provenance: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in provenance.items() if key not in ("source", "out")}
    start = kept.get("start")
    return kept | {"start": _without_folders(start)} if start else kept


def keep(run: Path, folder: Path) -> None:
    """The recipe as it is, the metrics, and every so many lines of the log with all that were measured."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [line for line in lines if "val_top1" in line or line["step"] % EVERY == 0]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    for name in ("recipe.toml", "metrics.json"):
        (folder / name).write_text((run / name).read_text(encoding="utf-8"), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--asset", type=Path, default=ASSET, help="where the bundled file goes")
    parser.add_argument("--log", type=Path, default=LOG, help="where recipes and logs go")
    parser.add_argument("--steps", type=int, help="fewer in each stretch, to see that it runs")
    words = parser.parse_args()
    result = learn(words.data, words.out, words.steps)
    halve(result.classifier).save(words.asset)
    for stretch in ("first", "second"):
        keep(words.out / stretch, words.log / stretch)
    assert result.evaluation is not None
    size, top1 = words.asset.stat().st_size / 1e6, 100 * result.evaluation.top1
    print(f"{words.asset}: {size:.1f} MB, {top1:.2f} % of the test pictures")


if __name__ == "__main__":
    main()
