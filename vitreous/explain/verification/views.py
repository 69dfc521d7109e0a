"""Eight views of one picture, for tests that a single picture is too few for."""

import torch
import torch.nn.functional as F

from vitreous.explain.question import Question, ask


def views(question: Question, image: int = 0) -> Question:
    """The picture, five crops of three quarters of its sides, and two mirror images.

    Each is asked about its own most probable class. They are not independent: what is found on them holds for
    pictures like this one.
    """
    x = question.images[image]  # (C, H, W)
    height, width = x.shape[1:]
    h, w = 3 * height // 4, 3 * width // 4
    corners = [(0, 0), (0, width - w), (height - h, 0), (height - h, width - w), ((height - h) // 2, (width - w) // 2)]
    crops = torch.stack([x[:, top : top + h, left : left + w] for top, left in corners])
    crops = F.interpolate(crops, (height, width), mode="bilinear", antialias=True)  # (5, C, H, W)
    made = torch.cat([x[None], x.flip(-1)[None], crops, crops[-1:].flip(-1)])  # (8, C, H, W)
    return ask(question.model, made, score="log_odds")
