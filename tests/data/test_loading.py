"""The stream of training pictures: a function of the position, whoever asks for it and from where."""

import pytest
import torch

from tests.conftest import write_pictures
from vitreous.data import open_data
from vitreous.data.augment import Augmentation
from vitreous.data.loading import EvaluationPictures, TrainingPictures, batches
from vitreous.errors import ImageError
from vitreous.preprocess import Preprocess

PREPROCESS = Preprocess.preset("google", size=16)


@pytest.fixture
def split(tmp_path):
    return open_data(write_pictures(tmp_path, {"a": 5, "b": 4})).split("all")


@pytest.mark.parametrize("augment", ["none", "trivial", "rand"])
def test_any_workers_and_any_start_give_the_same_pictures(split, augment):
    def stream(positions, workers):
        pictures = TrainingPictures(split, Augmentation(PREPROCESS, (0.2, 1.0), True, augment), PREPROCESS, seed=3)
        found = list(batches(pictures, positions, 4, workers))
        return torch.cat([images for images, _ in found]), torch.cat([labels for _, labels in found])

    state = torch.get_rng_state()
    images, labels = stream(range(24), 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert images.shape == (24, 3, 16, 16)
    for part, workers in ((range(24), 2), (range(8, 24), 1), (range(8, 24), 0)):
        there = stream(part, workers)
        assert torch.equal(there[0], images[part.start :])
        assert torch.equal(there[1], labels[part.start :])
    assert not torch.equal(images[:9], images[9:18])  # another epoch, other crops


def test_every_epoch_has_every_picture_once_in_another_order(split):
    pictures = TrainingPictures(split, Augmentation(PREPROCESS, None, False), PREPROCESS, seed=0)
    epochs = [[pictures[9 * epoch + place] for place in range(9)] for epoch in range(2)]
    whole = {tuple(PREPROCESS.load(split.open(i)).flatten()[:50].tolist()) for i in range(9)}
    orders = []
    for epoch in epochs:
        found = [tuple(image.flatten()[:50].tolist()) for image, _ in epoch]
        assert len(set(found)) == 9
        orders.append(found)
    assert set(orders[0]) == set(orders[1])
    assert orders[0] != orders[1]
    # Without a crop it is the picture as it will be evaluated, but for the rounding to 8 bits.
    assert len(whole) == 9


def test_flip_is_half_of_the_time_and_can_be_off(split):
    plain = TrainingPictures(split, Augmentation(PREPROCESS, None, False), PREPROCESS, seed=0)
    flipping = TrainingPictures(split, Augmentation(PREPROCESS, None, True), PREPROCESS, seed=0)
    flips = 0
    for position in range(200):
        before, after = plain[position][0], flipping[position][0]
        if not torch.equal(before, after):
            assert torch.equal(before, after.flip(-1))
            flips += 1
    assert 70 <= flips <= 130


def test_evaluation_sees_each_picture_once_in_order(split):
    found = list(batches(EvaluationPictures(split, PREPROCESS), range(9), 4, 1))
    assert [len(labels) for _, labels in found] == [4, 4, 1]
    assert torch.cat([labels for _, labels in found]).tolist() == split.labels.tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_is_an_error_with_its_name(split, workers):
    broken = split.root / split.names[6]
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(ImageError, match=rf"b/{broken.name}") as error:
        list(batches(EvaluationPictures(split, PREPROCESS), range(9), 4, workers))
    assert "\n" not in str(error.value)
