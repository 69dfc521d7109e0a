"""A classifier is model, preprocessing and names in one: used, saved, loaded."""

import logging

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import tiny
from vitreous.base.errors import ConfigError, ImageError, WeightsError
from vitreous.classifier import Classifier, load
from vitreous.pictures.preprocess import Preprocess

LABELS = ("Ähre", "b", "c", "d", "e", "f", "g")


@pytest.fixture
def clf():
    return Classifier(tiny(), Preprocess.preset("google", size=32), LABELS, {"from": "a test"})


@pytest.fixture
def picture():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))


def test_predictions_are_the_softmax_of_the_logits(clf, picture):
    (guesses,) = clf.predict(picture, top_k=3)
    wanted = clf.model(clf.preprocess.load(picture)[None]).softmax(-1)[0]
    assert [g.index for g in guesses] == wanted.argsort(descending=True)[:3].tolist()
    assert [g.probability for g in guesses] == pytest.approx(wanted.sort(descending=True).values[:3].tolist())
    assert [g.label for g in guesses] == [LABELS[g.index] for g in guesses]
    assert len(clf.predict(picture, top_k=99)[0]) == 7


def test_pictures_of_every_kind_and_any_number(clf, picture, tmp_path):
    picture.save(tmp_path / "p.png")
    array = np.asarray(picture)
    kinds = [tmp_path / "p.png", str(tmp_path / "p.png"), (tmp_path / "p.png").read_bytes(), picture, array]
    kinds.append(torch.from_numpy(array.copy()).permute(2, 0, 1))
    expected = clf.logits(picture)
    assert expected.shape == (1, 7)
    for kind in kinds:
        assert torch.equal(clf.logits(kind), expected)
    together = clf.logits(kinds)
    torch.testing.assert_close(together, expected.expand(6, 7), atol=1e-5, rtol=1e-5)
    assert clf.logits(np.stack([array, array])).shape == (2, 7)
    assert len(clf.predict(kinds, batch_size=4)) == 6
    with pytest.raises(ImageError, match=r"nowhere\.png"):
        clf.predict([picture, tmp_path / "nowhere.png"])


def test_predicting_leaves_the_mode_as_it_was(clf, picture):
    clf.model.train()
    clf.predict(picture)
    assert clf.model.training


def test_everything_survives_saving(clf, picture, tmp_path):
    clf.save(tmp_path / "new folder" / "clf.safetensors")
    again = load(tmp_path / "new folder" / "clf.safetensors")
    assert (again.labels, again.preprocess, again.provenance) == (clf.labels, clf.preprocess, clf.provenance)
    assert again.model.config == clf.model.config
    for name, tensor in clf.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)
    torch.testing.assert_close(again.logits(picture), clf.logits(picture), atol=1e-5, rtol=1e-5)
    assert all(p.requires_grad for p in again.model.parameters())


def test_loading_at_another_size_resizes_positions_and_says_how(clf, tmp_path, caplog):
    clf.save(tmp_path / "clf.safetensors")
    with caplog.at_level(logging.WARNING, "vitreous"):
        larger = load(tmp_path / "clf.safetensors", image_size=(48, 64))
    assert "4x4 to a 6x8 grid, mode 'google' (bilinear, aligned corners)" in caplog.text
    assert larger.preprocess.size == larger.model.config.image_size == (48, 64)
    old, new = clf.model.position_embedding, larger.model.position_embedding
    assert torch.equal(new[:, 0], old[:, 0])
    corners = new[0, 1:].unflatten(0, (6, 8))[[0, 0, -1, -1], [0, -1, 0, -1]]
    torch.testing.assert_close(corners, old[0, 1:].unflatten(0, (4, 4))[[0, 0, -1, -1], [0, -1, 0, -1]])


def test_loading_with_another_number_of_classes_makes_a_zero_head(clf, picture, tmp_path):
    clf.save(tmp_path / "clf.safetensors")
    other = load(tmp_path / "clf.safetensors", num_classes=5)
    assert other.labels is None
    assert torch.equal(other.model.blocks[2].mlp.fc2.weight, clf.model.blocks[2].mlp.fc2.weight)
    assert not other.model.head.weight.any()
    with pytest.raises(WeightsError, match="all zeros"):
        other.predict(picture)
    same = load(tmp_path / "clf.safetensors", num_classes=7)
    assert torch.equal(same.model.head.weight, clf.model.head.weight)


def test_preprocessing_can_be_chosen(clf, tmp_path):
    clf.save(tmp_path / "clf.safetensors")
    assert load(tmp_path / "clf.safetensors", preprocess="torchvision").preprocess.mean[0] == 0.485
    own = Preprocess(size=99, resize="short")
    assert load(tmp_path / "clf.safetensors", preprocess=own).preprocess == own.resized(32)


def test_parts_must_fit_together(clf):
    preset = Preprocess.preset("google", size=32)
    with pytest.raises(ConfigError, match="6 labels for 7 classes"):
        Classifier(tiny(), preset, LABELS[:6])
    with pytest.raises(ConfigError, match="takes"):
        Classifier(tiny(), preset.resized(64))
    with pytest.raises(ConfigError, match="channels"):
        Classifier(tiny(in_channels=1), preset)


def test_grey_model(picture):
    clf = Classifier(tiny(in_channels=1), Preprocess(size=32, mean=(0.5,), std=(0.5,)))
    assert clf.logits(picture).shape == (1, 7)
    assert clf.predict(picture)[0][0].label.startswith("class ")


def test_sources_that_are_no_model(tmp_path):
    with pytest.raises(WeightsError, match="no such file"):
        load(tmp_path / "nowhere.safetensors")
    with pytest.raises(WeightsError, match="no bundled model 'nothing'"):
        load("vitreous:nothing")
    (tmp_path / "empty.npz").touch()
    with pytest.raises(WeightsError, match="is empty"):
        load(tmp_path / "empty.npz")
    (tmp_path / "text.npz").write_text("hello, I am a model")
    with pytest.raises(WeightsError, match=r"text\.npz"):
        load(tmp_path / "text.npz")
