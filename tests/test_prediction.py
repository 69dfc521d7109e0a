"""Pictures as a stream: in order, decoded ahead, and no more of them in memory than two batches."""

import gc
import itertools
import threading
import weakref

import numpy as np
import pytest
import torch

from tests.conftest import tiny
from vitreous.base.errors import ImageError
from vitreous.classifier import Classifier
from vitreous.pictures.preprocess import Preprocess
from vitreous.prediction import Predictor, ahead


@pytest.fixture
def clf():
    return Classifier(tiny(), Preprocess.preset("google", size=32))


class Picture(np.ndarray):
    """An array that can be counted."""


def test_memory_is_flat_however_many_pictures(clf):
    alive: set[int] = set()
    most = 0

    def endless():
        for i in itertools.count():
            picture = np.full((32, 32, 3), i % 256, np.uint8).view(Picture)
            alive.add(i)
            weakref.finalize(picture, alive.discard, i)
            yield picture
            del picture

    found = clf.predict_each(endless(), top_k=1, batch_size=4, workers=2)
    for _ in range(200):
        next(found)
        gc.collect(0)
        most = max(most, len(alive))
    found.close()
    assert most <= 3 * 4  # two batches prepared or waiting, and one being handed out
    assert not [t for t in threading.enumerate() if t.name.startswith("decoding")]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_order_is_kept_and_broken_pictures_are_named_in_their_place(clf, workers):
    pictures = list(torch.randint(0, 256, (11, 3, 40, 50), dtype=torch.uint8))
    wanted = [guesses[0].index for guesses in clf.predict(pictures)]
    mixed = [*pictures[:5], "nowhere.png", *pictures[5:]]
    found = list(clf.predict_each(iter(mixed), batch_size=4, workers=workers))
    assert isinstance(found[5], ImageError)
    assert "nowhere.png" in str(found.pop(5))
    assert [guesses[0].index for guesses in found] == wanted
    assert list(clf.predict_each([], workers=workers)) == []


def test_the_next_pictures_are_decoded_while_others_are_computed():
    started = threading.Event()

    def work(item):
        if item == 3:
            started.set()
        return item

    results = ahead(range(10), work, workers=1, depth=4)
    assert next(results) == 0
    assert started.wait(10)  # nobody has asked for 3 yet
    assert list(results) == list(range(1, 10))


def test_sizes_that_differ_are_computed_size_by_size_without_padding():
    calls = []

    class Sums(Predictor):
        def compute(self, images):
            calls.append(tuple(images.shape))
            return images.flatten(1).sum(1, keepdim=True)

        def check_head(self):
            pass

        config = tiny().config

    images = [torch.full((3, *size), float(i)) for i, size in enumerate([(4, 4), (2, 6), (4, 4), (5, 5), (2, 6)])]
    logits = Sums(Preprocess(size=32), None).compute_all(images)
    assert logits.flatten().tolist() == [float(image.sum()) for image in images]
    assert calls == [(2, 3, 4, 4), (2, 3, 2, 6), (1, 3, 5, 5)]
