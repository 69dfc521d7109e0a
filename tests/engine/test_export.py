"""Exported files: the same logits, the same names, and nothing else needed but the file."""

import json

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from tests.conftest import tiny, write_pictures
from vitreous.base.errors import ConfigError, ImageError, VitreousError, WeightsError
from vitreous.classifier import Classifier, load
from vitreous.engine import export as exporting
from vitreous.engine.card import Card
from vitreous.engine.export import export
from vitreous.engine.exported import load_exported
from vitreous.engine.graph import onnx_model
from vitreous.engine.runtimes import open_onnxruntime, open_openvino, require
from vitreous.pictures.preprocess import Preprocess

LABELS = ("Ähre", "b", "<c>", "d & e", 'f"', "g", "10")
GAP = dict(classifier="gap")
HYBRID = dict(resnet=dict(num_layers=(1, 1), width_factor=0.5), patch_size=1)
MODELS = [
    {},
    GAP,
    {**GAP, "gap_class_token": True, "norm_after_pooling": True},
    {"representation_size": 20},
    {"num_classes": 0},
    {"num_layers": 1},
    {"image_size": (16, 40)},
    {"gelu": "erf", "layer_norm_eps": 1e-12},
    {"in_channels": 1},
    {"mlp_dim": 1024},
    HYBRID,
    {"resnet": dict(num_layers=()), "patch_size": 2},
    {"resnet": dict(num_layers=(1, 2), numerics="timm"), "patch_size": 1, "image_size": (24, 40)},
]


def classifier(preset="google", **overrides):
    model = tiny(**overrides)
    preprocess = Preprocess.preset(preset, size=model.config.image_size)
    if model.config.in_channels == 1:
        preprocess = preprocess.replace(mean=(0.5,), std=(0.5,))
    return Classifier(model, preprocess, LABELS[: model.config.num_classes] or None, {"from": "a test"})


@pytest.fixture(scope="module")
def clf():
    return classifier()


@pytest.fixture(scope="module", params=["onnx", "openvino", "pt2"])
def exported(request, clf, tmp_path_factory):
    """The same classifier in every format, opened with nothing but what was written."""
    if request.param == "openvino":
        pytest.importorskip("openvino")
    place = (
        tmp_path_factory.mktemp("exported")
        / {"onnx": "cats.onnx", "openvino": "cats", "pt2": "cats.pt2"}[request.param]
    )
    done = export(clf, place, request.param)
    assert done.difference <= 1e-4
    assert done.size > 4 * sum(p.numel() for p in clf.model.parameters())
    moved = place.parent / "elsewhere" / place.name
    moved.parent.mkdir()
    place.rename(moved)
    assert not [p for p in place.parent.rglob("*") if p.name.startswith(".")]  # no half files are left
    return load_exported(moved, threads=1, trusted=request.param == "pt2")


def pictures(count, seed=0):
    numbers = np.random.default_rng(seed)
    for i in range(count):
        size = (int(numbers.integers(20, 90)), int(numbers.integers(20, 90)), 3)
        colour = numbers.integers(0, 256, 3)
        yield Image.fromarray(np.clip(colour + numbers.normal(0, 10 + i, size), 0, 255).astype(np.uint8))


def test_the_file_alone_gives_the_same_classes_on_50_pictures(clf, exported):
    shown = list(pictures(50))
    ours, theirs = clf.predict(shown, top_k=3), exported.predict(shown, top_k=3)
    assert [[g.label for g in guesses] for guesses in ours] == [[g.label for g in guesses] for guesses in theirs]
    assert len({guesses[0].label for guesses in ours}) > 1  # else anything would pass
    assert exported.labels == LABELS
    assert exported.card == Card(clf.model.config, clf.preprocess, LABELS, {"from": "a test"})
    assert (
        exported.preprocess.to_dict().items() >= {"mean": (0.5,) * 3, "resize": "squash", "crop_fraction": 1.0}.items()
    )


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_any_batch_size(clf, exported, batch):
    images = torch.randn(batch, 3, 32, 32)
    torch.testing.assert_close(exported.compute(images), clf.compute(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 3, 16, 48), (1, 3, 64, 64), (1, 1, 32, 32), (3, 32, 32)])
def test_another_size_is_refused_in_our_words(exported, shape):
    with pytest.raises(ImageError, match=r"B, 3, 32, 32"):
        exported.compute(torch.zeros(shape))


@pytest.mark.parametrize("overrides", MODELS)
def test_the_graph_is_the_model(overrides, tmp_path):
    model = tiny(**overrides)
    graph = onnx_model(model)
    onnx.checker.check_model(graph, full_check=True)
    onnx.save_model(graph, tmp_path / "m.onnx")
    runs = [open_onnxruntime(tmp_path / "m.onnx", 1)[0]]
    if _has_openvino():
        runs.append(open_openvino(tmp_path / "m.onnx", 1)[0])
    for batch in (1, 3):
        images = torch.randn(batch, model.config.in_channels, *model.config.image_size)
        with torch.inference_mode():
            wanted = model(images)
        for run in runs:
            torch.testing.assert_close(run(images), wanted, atol=5e-5, rtol=1e-5)


def _has_openvino():
    try:
        require("openvino")
    except VitreousError:
        return False
    return True


@pytest.mark.parametrize("mlp_dim, wanted", [(96, 96), (1024, 1040), (1536, 1536), (3072, 3088)])
def test_no_row_of_the_hidden_layer_takes_whole_pages(mlp_dim, wanted):
    graph = onnx_model(tiny(mlp_dim=mlp_dim)).graph
    products = {tuple(x.dims) for x in graph.initializer if len(x.dims) == 2}
    assert {(48, wanted), (wanted, 48)} <= products
    assert wanted * 4 % 4096


def test_the_last_block_computes_what_the_head_reads():
    """Only one row goes through its query, its projection and its MLP; k and v are for all."""
    graph = onnx.shape_inference.infer_shapes(onnx_model(tiny())).graph
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.value_info}
    rows = [shapes[node.output[0]][1] for node in graph.node if node.op_type == "Gelu"]
    assert rows == [17, 17, 1]
    products = [shapes[node.output[0]] for node in graph.node if node.op_type == "MatMul" and node.output[0] in shapes]
    of_last_block = [s[1] for s in products if len(s) == 3][-6:]  # q, k, v, out, fc1, fc2
    assert of_last_block == [1, 17, 17, 1, 1, 1]


@pytest.mark.parametrize("preset", ["google", "timm", "huggingface", "torchvision"])
def test_pixels_of_any_size_prepared_in_the_graph(preset, tmp_path):
    clf = classifier(preset)
    export(clf, tmp_path / "m.onnx", preprocess="graph")
    opened = load_exported(tmp_path / "m.onnx", threads=1)
    shown = list(pictures(20, seed=1))
    ours, theirs = clf.logits(shown), opened.logits(shown)  # of 20 different sizes, computed size by size
    near = (
        dict(atol=1e-4, rtol=0) if not clf.preprocess.antialias else dict(atol=0.05 * float(ours.abs().max()), rtol=0)
    )
    torch.testing.assert_close(theirs, ours, **near)
    with pytest.raises(ImageError, match="uint8"):
        opened.compute(torch.zeros(1, 3, 40, 40))


def test_a_runtime_that_prepares_otherwise_is_refused(tmp_path):
    pytest.importorskip("openvino")
    export(classifier("google"), tmp_path / "squashed", "openvino", preprocess="graph")
    with pytest.raises(VitreousError, match="leave the preprocessing in the metadata"):
        export(classifier("timm"), tmp_path / "short", "openvino", preprocess="graph")  # no antialiasing as Pillow's
    assert [p.name for p in tmp_path.iterdir()] == ["squashed"]


def test_names_are_the_same_at_every_step(tmp_path, vitreous):
    """Saved, loaded, exported by the command, opened again."""
    clf = classifier()
    clf.save(tmp_path / "m.safetensors")
    done = vitreous("export", tmp_path / "m.safetensors", tmp_path / "m.onnx", "--to", "onnx")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'm.onnx'}\n"
    assert "logits within" in done.stderr
    again, opened = load(tmp_path / "m.safetensors"), load_exported(tmp_path / "m.onnx")
    assert clf.labels == again.labels == opened.labels == LABELS
    stored = {prop.key: json.loads(prop.value) for prop in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert tuple(stored["vitreous.labels"]) == LABELS
    assert stored["vitreous.preprocess"]["std"] == [0.5, 0.5, 0.5]


@pytest.fixture
def vitreous():
    from typer.testing import CliRunner

    from vitreous.cli.main import app

    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_int8_is_a_quarter_of_the_size_and_nearly_as_good(tmp_path):
    data = write_pictures(tmp_path / "data", {"a": 70, "b": 70, "c": 70}, size=(32, 32))
    model = tiny(hidden_size=96, mlp_dim=384, num_classes=3)
    clf = Classifier(model, Preprocess.preset("google", size=32), ("a", "b", "c"))
    images = clf.prepare(sorted(data.glob("?/*[05].png")))
    classes = torch.arange(3).repeat_interleave(len(images) // 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), classes).backward()
        optimizer.step()
    whole = export(clf, tmp_path / "float32.onnx")
    small = export(clf, tmp_path / "int8.onnx", precision="int8", data=data)
    assert small.size <= 0.30 * whole.size
    assert small.accuracy.n == 210
    assert small.accuracy.before >= 0.9
    assert small.accuracy.after >= small.accuracy.before - 0.02
    opened = load_exported(tmp_path / "int8.onnx")
    assert (opened.card.precision, opened.labels) == ("int8", ("a", "b", "c"))


def test_weights_too_large_for_one_file_lie_beside_it(clf, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "LARGEST_FILE", 1000)
    path = tmp_path / "m.onnx"
    for _ in range(2):  # the second replaces the first
        done = export(clf, path)
        first, second = sorted(tmp_path.iterdir())
        assert first == path
        assert second.name.startswith("m.onnx.")
        assert done.size == first.stat().st_size + second.stat().st_size
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(load_exported(path).compute(images), clf.compute(images), atol=1e-5, rtol=1e-5)


def test_what_is_not_pytorchs_is_not_written(clf, tmp_path, monkeypatch):
    export(clf, tmp_path / "m.onnx")
    before = (tmp_path / "m.onnx").read_bytes()

    def wrong(model, *rest):
        with torch.no_grad():
            model.norm.bias += 1e-2
        try:
            return onnx_model(model, *rest)
        finally:
            with torch.no_grad():
                model.norm.bias -= 1e-2

    monkeypatch.setattr(exporting, "onnx_model", wrong)
    for to, name in (("onnx", "m.onnx"), ("openvino", "folder")) if _has_openvino() else (("onnx", "m.onnx"),):
        with pytest.raises(VitreousError, match=r"differ from PyTorch's by .*not written"):
            export(clf, tmp_path / name, to)
    assert (tmp_path / "m.onnx").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_other_dtypes_are_exported_in_float32(tmp_path):
    clf = classifier()
    clf.model.bfloat16()
    export(clf, tmp_path / "m.onnx")
    images = torch.randn(2, 3, 32, 32)
    theirs, ours = load_exported(tmp_path / "m.onnx").compute(images), clf.model.float()(images)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


def test_a_folder_with_other_things_is_left_alone(clf, tmp_path):
    pytest.importorskip("openvino")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(VitreousError, match="holds other things"):
        export(clf, tmp_path / "mine", "openvino")
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"
    export(clf, tmp_path / "ours", "openvino")
    export(clf, tmp_path / "ours", "openvino")  # its own is replaced
    assert {p.name for p in tmp_path.iterdir()} == {"mine", "ours"}


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("m.onnx", {"to": "onxn"}, "did you mean 'onnx'"),
        ("m.bin", {}, r"ends in \.onnx"),
        ("m.xml", {"to": "openvino"}, "a folder"),
        ("m.pt2", {"to": "pt2", "preprocess": "graph"}, "for onnx and openvino"),
        ("m.onnx", {"precision": "int8"}, "give data"),
        ("m", {"to": "openvino", "precision": "int8", "data": "."}, "int8 is for onnx"),
    ],
)
def test_what_there_is_not(clf, tmp_path, name, settings, message):
    with pytest.raises(ConfigError, match=message):
        export(clf, tmp_path / name, **settings)


def test_files_that_are_not_ours(clf, tmp_path):
    onnx.save_model(onnx_model(clf.model), tmp_path / "bare.onnx")
    (tmp_path / "text.onnx").write_text("hello, I am a model")
    (tmp_path / "some.pt2").write_bytes(b"PK")
    for name, message in (
        ("bare.onnx", "not a file that vitreous exported"),
        ("text.onnx", "cannot open it"),
        ("nowhere.onnx", "no such file"),
        ("some.pt2", "trusted=True"),
    ):
        with pytest.raises(WeightsError, match=message):
            load_exported(tmp_path / name)
    with pytest.raises(VitreousError, match=r"ends in \.onnx"):
        load_exported(__file__)


def test_interpolation_without_an_operator(tmp_path):
    clf = classifier()
    clf.preprocess = clf.preprocess.replace(interpolation="lanczos", antialias=True)
    with pytest.raises(ConfigError, match="lanczos"):
        export(clf, tmp_path / "m.onnx", preprocess="graph")
