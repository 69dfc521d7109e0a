"""The studies of less data and of transfer run from the command line, and make page, figure and numbers."""

import json

import pytest
import torch

from scripts.studies import frozen, harness, less_data, transfer
from scripts.studies.parts import Parts
from tests.conftest import tiny, write_pictures
from vitreous.classifier import Classifier
from vitreous.evaluation import features
from vitreous.pictures.images import read_image
from vitreous.pictures.preprocess import Preprocess


def pretrained(folder):
    """A model file with patches of 14 pixels, and a preprocessing that cuts borders off."""
    path = folder / "pretrained.safetensors"
    clf = Classifier(tiny(image_size=28, patch_size=14, num_classes=7), Preprocess.preset("torchvision", size=28))
    clf.save(path)
    return path


@pytest.fixture(params=["less_data", "transfer"])
def study(request, tmp_path):
    """A study's module, and the file that it needs."""
    if request.param == "less_data":
        for part, count in (("train", 20), ("val", 5)):
            write_pictures(tmp_path / "data" / part, {"a": count, "b": count, "c": count}, size=(32, 32))
        return less_data, {"data": tmp_path / "data", "pretrained": pretrained(tmp_path)}
    clf = Classifier(tiny(image_size=16, patch_size=4, num_classes=7), Preprocess.preset("google", size=16))
    clf.save(tmp_path / "pretrained.safetensors")
    return transfer, {"model": tmp_path / "pretrained.safetensors"}


def test_a_study_makes_its_page_figure_and_numbers(study, tmp_path):
    module, files = study
    out, parts = tmp_path / "out", tmp_path / "parts.jsonl"
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]

    def run(*more):
        functions = (module.measure, module.figure, module.page)
        harness.main(module.NAME, *functions, ["--out", str(out), *more], **files, parts=parts)

    run("--quick", *words)
    numbers = json.loads((out / f"{module.NAME}.json").read_text())
    assert len(numbers["seeds"]) == 2
    for runs in numbers["accuracy"].values():
        assert len(runs) >= 4
        assert all(len(values) == 2 and all(0 <= v <= 100 for v in values) for values in runs.values())
    page = (out / f"{module.NAME}.md").read_text()
    assert f"({module.NAME}.svg)" in page
    assert (out / f"{module.NAME}.svg").read_text().count("<svg") == 1
    for path in files.values():
        assert str(path.parent) not in page + json.dumps(numbers)
    assert not parts.exists()  # two steps are not to be taken for a measurement later
    assert not parts.with_suffix(".features").exists()
    # Page and figure are functions of the numbers.
    drawn = {path.name: path.read_bytes() for path in out.iterdir()}
    run("--redraw")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == drawn


def test_a_stopped_study_goes_on(tmp_path, monkeypatch):
    for part, count in (("train", 20), ("val", 5)):
        write_pictures(tmp_path / "data" / part, {"a": count, "b": count}, size=(32, 32))
    monkeypatch.setattr(less_data, "STEPS", 1)
    monkeypatch.setattr(less_data, "SEEDS", (0,))
    parts = tmp_path / "parts.jsonl"
    weights = pretrained(tmp_path)

    def measure():
        numbers = less_data.measure(False, tmp_path / "data", parts, weights)
        return numbers, numbers.pop("cached_seconds")

    whole, cached = measure()
    assert cached == 0
    lines = parts.read_text().splitlines(keepends=True)
    assert len(lines) == 8 + 2  # features of both parts
    parts.write_text("".join(lines[:5]))
    trained = []
    train = less_data.train
    monkeypatch.setattr(less_data, "train", lambda *args, **settings: trained.append(1) or train(*args, **settings))
    again, cached = measure()
    assert again == whole
    assert len(trained) == 3
    assert names(parts.read_text().splitlines()) == names(lines)
    assert cached == sum(json.loads(line)[2] for line in lines[:5])  # the page's time is that of all of the work


def names(lines):
    return [json.loads(line)[0] for line in lines]


def test_features_of_a_stopped_study_are_kept(tmp_path, monkeypatch):
    write_pictures(tmp_path / "data" / "train", {"a": 20, "b": 20}, size=(32, 32))
    write_pictures(tmp_path / "data" / "val", {"a": 5, "b": 5}, size=(32, 32))
    split, _ = less_data.read(tmp_path / "data")
    clf = frozen.open_frozen(pretrained(tmp_path))
    monkeypatch.setattr(frozen, "CHUNK", 15)
    computed, calls = [], []
    stream, extract = features.stream, frozen.extract

    def counted(clf, split, rows, **settings):
        computed.append(len(rows))
        return stream(clf, split, rows, **settings)

    def stopped(*args, **settings):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return extract(*args, **settings)

    monkeypatch.setattr(features, "stream", counted)
    monkeypatch.setattr(frozen, "extract", stopped)
    parts = tmp_path / "parts.jsonl"
    with pytest.raises(KeyboardInterrupt):
        frozen.features(clf, split, Parts(parts), "model")
    assert computed == [15, 15]
    monkeypatch.setattr(frozen, "extract", extract)
    found = frozen.features(clf, split, Parts(parts), "model")
    assert [n for n in computed[2:] if n] == [10]
    # The whole picture, enlarged to 70 pixels, with the model's own normalisation.
    assert (clf.preprocess.size, clf.preprocess.crop_fraction) == ((70, 70), 1.0)
    x = torch.stack([clf.preprocess(read_image(split.open(i))) for i in range(len(split))])
    assert torch.allclose(features.backbone(clf.model)(x), found, atol=1e-4)


def test_without_the_pretrained_model_its_arm_is_left_out(tmp_path, capsys):
    for part in ("train", "val"):
        write_pictures(tmp_path / "data" / part, {"a": 5, "b": 5}, size=(32, 32))
    numbers = less_data.measure(True, tmp_path / "data", tmp_path / "parts.jsonl", tmp_path / "none.safetensors")
    assert list(numbers["accuracy"]) == ["ViT", "ResNet"]
    assert "none.safetensors is not here" in capsys.readouterr().err
    page = less_data.page(numbers | {"cpu_seconds": 1})
    assert "train" in page
    assert "pre-train" not in page


def test_the_page_says_what_the_numbers_say():
    def page(vit, cnn, probed):
        def runs(value):
            return {str(f): [value + f, value + f + 0.1, value + f + 0.2] for f in less_data.FRACTIONS}

        model = {"name": "m", "blocks": 1, "width": 1, "patches": 25, "image_size": 70, "params": 2_000}
        return less_data.page(
            {
                "seeds": [0, 1, 2],
                "accuracy": {"ViT": runs(vit), "ResNet": runs(cnn), less_data.PROBE: runs(probed)},
                "params": {"ViT": 1_000, "ResNet": 1_000},
                "mmacs": {"ViT": 1.0, "ResNet": 1.0},
                "pretrained": model,
                **{"steps": 1_000, "batch_size": 32, "train": 50_000, "test": 10_000, "classes": 10, "cpu_seconds": 1},
            }
        )

    behind, ahead = page(30, 40, 60), page(40, 30, 20)
    assert "The ResNet is ahead beyond that interval at 1%, 5%, 20%, 100%, the ViT at no share." in behind
    assert "The ResNet is ahead beyond that interval at no share, the ViT at 1%, 5%, 20%, 100%." in ahead
    assert "cannot be seen" in behind
    assert "cannot be seen" not in ahead
    assert "by +20.0 points at 1%" in behind
    assert "the probe reaches with 1% of them" in behind
    assert "by -20.0 points at 1%" in ahead
    assert "the probe reaches at no share" in ahead
    for text in (behind, ahead):  # said as plainly whatever comes out
        assert "another\nmodel, of another size and another amount of data" in text
        assert "not a\nfair comparison of architectures" in text
    assert "142 million" not in behind  # that is said of one file alone
    known = less_data.ORIGIN[less_data.PRETRAINED.name]
    assert "142 million pictures" in known
    assert "fine-tuned" in known


def test_cost_counts_attention_too():
    class Attention(torch.nn.Module):
        def forward(self, x):
            tokens = x.flatten(2).transpose(1, 2)  # (B, 1024, 3)
            return torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)

    assert less_data._macs(Attention()) == 2 * 1024 * 1024 * 3


def test_a_smaller_share_lies_within_a_larger():
    labels = torch.arange(400) % 4
    small, large = (set(less_data.subset(labels, f, seed=1).tolist()) for f in (0.05, 0.2))
    assert small < large
    assert (len(small), len(large)) == (20, 80)
    assert set(less_data.subset(labels, 0.05, seed=2).tolist()) != small
    few, more = (set(transfer.choose(labels, k, seed=1).tolist()) for k in (1, 5))
    assert few < more
