"""Taking patches out of a picture, and what the model says then.

How a patch is removed is the most influential choice of all: each way shows the model something
that it was never trained on, in its own manner. So there are several, and a finding counts when
two of them agree.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError, did_you_mean
from vitreous.base.memory_guard import require
from vitreous.base.progress import Advance
from vitreous.config import Size
from vitreous.explain.forward import logits_of
from vitreous.explain.question import Question

Operator = Literal["drop", "mean", "blur", "patch_mean", "shuffle", "black"]

BATCH = 16
CAVEATS = {
    "drop": "the model was not trained with missing tokens, and is least at home when most are gone",
    "mean": "squares of one colour are not photographs, and their edges can be read",
    "blur": "a blurred patch still shows its colours and its coarse shape",
    "patch_mean": "squares of one colour are not photographs, and their edges can be read",
    "shuffle": "patches from elsewhere in the picture can bring evidence with them",
    "black": "black is a colour like any other, and can be evidence itself",
}


class Remover:
    """Takes patches out of the pictures of a question and gives the logits of what is left.

    `drop` deletes the patches' tokens after positions were added, so the sequence is shorter and
    nothing stands in their place; prefix tokens stay. The other operators put a patch of another
    picture in: of the mean colour, blurred, of the patch's own mean colour, from another place of
    the same picture, or black. Pictures are embedded once, equal requests are computed once, and
    requests that leave equally many tokens run together.

    Args:
        question: the pictures and the model.
        operator: one of `Operator`.
        batch_size: forward passes at once.
        seed: the seed of `shuffle`.
        advance: called with the number of requests done, for a progress bar.

    Raises:
        ConfigError: an unknown operator, or `black` for a bare model.
    """

    def __init__(
        self,
        question: Question,
        operator: Operator = "drop",
        *,
        batch_size: int = BATCH,
        seed: int = 0,
        advance: Advance | None = None,
    ) -> None:
        if operator not in get_args(Operator):
            hint = did_you_mean(str(operator), get_args(Operator))
            raise ConfigError(f"unknown removal operator {operator!r}{hint}: one of {', '.join(get_args(Operator))}")
        _check_memory(question, batch_size)
        self.question = question
        self.batch_size = batch_size
        self.advance = advance
        self.shortens = operator == "drop"
        self.fill = None if self.shortens else FILLS[operator](question, seed)  # (B, C, H, W)
        # Patches are embedded one by one, so a picture put together from patches of two is the two embeddings
        # put together. A hybrid's stem looks beyond a patch's border: it must see the pixels.
        hybrid = question.model.config.resnet is not None
        self.fill_tokens = None if self.fill is None or hybrid else question.model.embed(self.fill)  # (B, S, D)

    @torch.no_grad()
    def __call__(self, which: Tensor, removed: Tensor) -> Tensor:
        """Logits of pictures with patches taken out.

        Args:
            which: (M,) the picture of each request.
            removed: (M, N) bool, True where a patch is taken out.

        Returns:
            (M, K).

        Raises:
            ConfigError: a model that reads the mean over its patches would have none left.
        """
        question, device = self.question, self.question.tokens.device
        rows = torch.cat([which[:, None].to(device), removed.to(device).long()], dim=1)  # (M, 1 + N)
        rows, back, repeats = rows.unique(dim=0, return_inverse=True, return_counts=True)
        which, removed = rows[:, 0], rows[:, 1:].bool()
        counts = removed.sum(dim=1)
        if self.shortens and question.model.config.classifier == "gap" and bool((counts == removed.shape[1]).any()):
            raise ConfigError("a model that reads the mean over its patches needs one: not all can be dropped")
        length = counts if self.shortens else torch.zeros_like(counts)  # equal for those that can share a batch
        logits = question.tokens.new_empty(len(which), question.logits.shape[1])
        for value in length.unique():
            for batch in (length == value).nonzero()[:, 0].split(self.batch_size):
                logits[batch] = self._run(which[batch], removed[batch])
                if self.advance is not None:
                    self.advance(int(repeats[batch].sum()))
        return logits[back]

    def _run(self, which: Tensor, removed: Tensor) -> Tensor:
        """Requests that leave equally many tokens, in one batch: (m,), (m, N) -> (m, K)."""
        question = self.question
        prefix = removed.new_zeros(len(removed), question.prefix)
        out = torch.cat([prefix, removed], dim=1)  # (m, S)
        if self.fill is None:
            kept = (~out).nonzero()[:, 1].view(len(out), -1)  # (m, S')
            return logits_of(question.model, question.tokens[which[:, None], kept])
        if self.fill_tokens is not None:
            tokens = torch.where(out[..., None], self.fill_tokens[which], question.tokens[which])  # (m, S, D)
            return logits_of(question.model, tokens)
        stride = question.model.config.stride
        pixels = in_pixels(removed.unflatten(1, question.grid), stride)[:, None]  # (m, 1, H, W)
        return question.model(torch.where(pixels, self.fill[which], question.images[which]))


def blurred(images: Tensor) -> Tensor:
    """Gaussian blur with sigma a sixteenth of the shorter side: (B, C, H, W)."""
    from torchvision.transforms.v2 import functional

    sigma = min(images.shape[-2:]) / 16
    size = 2 * round(3 * sigma) + 1
    return functional.gaussian_blur(images, [size, size], [sigma, sigma])


def in_pixels(patches: Tensor, stride: Size) -> Tensor:
    """(M, h, w) -> (M, H, W), each patch's value for all its pixels."""
    return patches.repeat_interleave(stride[0], dim=-2).repeat_interleave(stride[1], dim=-1)


def _patch_mean(question: Question, seed: int) -> Tensor:
    stride = question.model.config.stride
    means = torch.nn.functional.avg_pool2d(question.images, stride)  # (B, C, h, w)
    return in_pixels(means.flatten(0, 1), stride).view_as(question.images)


def _shuffled(question: Question, seed: int) -> Tensor:
    """Each patch from another place of the same picture: the patches moved along a random cycle."""
    (rows, columns), (p1, p2), x = question.grid, question.model.config.stride, question.images
    count = rows * columns
    cycle = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    source = torch.empty(count, dtype=torch.long)
    source[cycle] = cycle.roll(1)  # nothing stays in its place
    patches = x.unflatten(3, (columns, p2)).unflatten(2, (rows, p1)).transpose(3, 4).flatten(2, 3)  # (B, C, N, p1, p2)
    moved = patches[:, :, source.to(x.device)].unflatten(2, (rows, columns))  # (B, C, h, w, p1, p2)
    return moved.transpose(3, 4).flatten(4, 5).flatten(2, 3)  # (B, C, H, W)


def _black(question: Question, seed: int) -> Tensor:
    if question.preprocess is None:
        raise ConfigError("what black is depends on the preprocessing: give a Classifier, or use another operator")
    mean, std = torch.tensor(question.preprocess.mean), torch.tensor(question.preprocess.std)
    return (-mean / std).to(question.images.device)[:, None, None].expand_as(question.images)


FILLS: dict[str, Callable[[Question, int], Tensor]] = {
    "mean": lambda question, seed: torch.zeros_like(question.images),  # the mean colour after normalisation
    "blur": lambda question, seed: blurred(question.images),
    "patch_mean": _patch_mean,
    "shuffle": _shuffled,
    "black": _black,
}


def _check_memory(question: Question, batch_size: int) -> None:
    """The widest moment of a block: x, LN(x), q, k, v, and x, LN(x) with the hidden layer of the MLP twice."""
    config = question.model.config
    widest = max(6 * config.hidden_size, 2 * config.hidden_size + 2 * config.mlp_dim)
    needed = 4 * batch_size * config.num_tokens * widest
    require(needed, question.images.device, f"{batch_size} forward passes at once", "lower batch_size")


def requests(question: Question, masks: Tensor) -> tuple[Tensor, Tensor]:
    """The same masks (R, N) for each picture, or its own (B, R, N): -> which (B*R,), removed (B*R, N)."""
    count = len(question.images)
    masks = masks if masks.ndim == 3 else masks.expand(count, *masks.shape)
    which = torch.arange(count).repeat_interleave(masks.shape[1])
    return which, masks.flatten(0, 1)


def effects(question: Question, remove: Remover, which: Tensor, removed: Tensor) -> Tensor:
    """By how much the score falls: s(x) - s(x without the patches), (M,)."""
    which = which.to(question.images.device)
    return question.value[which] - question.score_of(remove(which, removed), which)


def singles(question: Question, operator: Operator = "drop", *, seed: int = 0, **settings: Any) -> Tensor:
    """Logits (B, N, K) with each patch alone removed; computed once for a question, whatever the class or score."""

    def compute() -> Tensor:
        images, patches = len(question.images), question.grid[0] * question.grid[1]
        masks = torch.eye(patches, dtype=torch.bool)
        logits = Remover(question, operator, seed=seed, **settings)(*requests(question, masks))  # (B*N, K)
        return logits.view(images, patches, -1)

    return question.memo.once(("singles", operator, seed), compute)


def single_effects(question: Question, operator: Operator = "drop", **settings: Any) -> Tensor:
    """By how much the score falls without each patch: (B, N)."""
    logits = singles(question, operator, **settings)
    which = torch.arange(len(logits), device=logits.device).repeat_interleave(logits.shape[1])
    return question.value[:, None] - question.score_of(logits.flatten(0, 1), which).view(logits.shape[:2])
