"""What happens when patches are removed: occlusion one window at a time, RISE many at random."""

from typing import Any

import torch
from torch import Tensor

from vitreous.base.errors import ConfigError
from vitreous.base.progress import Advance
from vitreous.config import Size, as_size
from vitreous.explain.explanation import Details, Explanation, Kind, explain
from vitreous.explain.question import Question, ScoreName, Subject, Target, ask
from vitreous.explain.removal import BATCH, Operator, Remover, effects, requests, single_effects


def occlusion(
    subject: Subject | Question,
    images: Any = None,
    *,
    remove: Operator = "drop",
    window: int | Size = 1,
    stride: int | Size = 1,
    target: Target = None,
    score: ScoreName = "log_odds",
    instead_of: Target = None,
    batch_size: int = BATCH,
    seed: int = 0,
    advance: Advance | None = None,
) -> Explanation:
    """What removing a window of patches takes from the score: s(x) - s(x without it).

    A patch that several windows cover gets the mean of their effects.

    Args:
        subject: a classifier or a bare model.
        images: its pictures; see `ask` for these, the target and the score.
        remove: how; see `Remover`.
        window: (rows, columns) of patches removed at once.
        stride: (rows, columns) from one window to the next, at most the window's size.
        target: class index or name.
        score: what is measured.
        instead_of: the other class of a contrast.
        batch_size: forward passes at once.
        seed: of the `shuffle` operator.
        advance: called with the number of forward passes done.

    Returns:
        A map in the score's unit, positive where the picture speaks for the class.

    Source: Zeiler and Fergus 2014, section 4.2, with tokens in place of pixels.
    """
    question = ask(subject, images, target=target, score=score, instead_of=instead_of)
    masks = windows(question.grid, as_size(window, "window"), as_size(stride, "stride"))  # (R, N)
    several = bool(masks.sum(dim=1).max() > 1)

    how: dict[str, Any] = dict(batch_size=batch_size, seed=seed, advance=advance)

    def compute(question: Question) -> tuple[Tensor, Details]:
        if not several:
            return single_effects(question, remove, **how).unflatten(1, question.grid), {}
        taken = Remover(question, remove, **how)
        fall = effects(question, taken, *requests(question, masks)).view(len(question.images), -1)  # (B, R)
        cover = masks.to(fall)  # (R, N)
        return ((fall @ cover) / cover.sum(dim=0)).unflatten(1, question.grid), {}

    return explain(
        question,
        compute,
        method="occlusion",
        kind=Kind.INTERVENTION,
        caption=f"What happens when {'these patches are' if several else 'this patch is'} removed",
        remove=remove,
        window=list(as_size(window)),
        stride=list(as_size(stride)),
    )


def windows(grid: Size, window: Size, stride: Size) -> Tensor:
    """Every place of a window, the last ones pushed back inside: (R, h*w) bool.

    Raises:
        ConfigError: a window larger than the grid, or a stride that leaves patches out.
    """
    if any(w > g for w, g in zip(window, grid, strict=True)):
        raise ConfigError(f"a window of {window[0]}x{window[1]} patches is larger than the {grid[0]}x{grid[1]} grid")
    if any(s > w for s, w in zip(stride, window, strict=True)):
        raise ConfigError(f"with a stride of {stride} and a window of {window} some patches are never removed")
    starts = [sorted({*range(0, g - w + 1, s), g - w}) for g, w, s in zip(grid, window, stride, strict=True)]
    masks = torch.zeros(len(starts[0]) * len(starts[1]), *grid, dtype=torch.bool)
    for i, (row, column) in enumerate((r, c) for r in starts[0] for c in starts[1]):
        masks[i, row : row + window[0], column : column + window[1]] = True
    return masks.flatten(1)


def rise(
    subject: Subject | Question,
    images: Any = None,
    *,
    n: int = 1000,
    keep: float = 0.5,
    remove: Operator = "drop",
    classic: bool = False,
    target: Target = None,
    score: ScoreName = "prob",
    instead_of: Target = None,
    batch_size: int = BATCH,
    seed: int = 0,
    advance: Advance | None = None,
) -> Explanation:
    """How the score depends on each patch being there, over random sets of patches: a regression slope a patch.

        sum_i (y_i - mean y) (m_i - mean m) / sum_i (m_i - mean m)^2

    with m_i 1 where a patch is kept and y_i the score. With `keep` 0.5 the masks come in pairs, each with
    its opposite, so that what depends on their density alone cancels.

    Args:
        subject: a classifier or a bare model.
        images: its pictures; see `ask` for these, the target and the score.
        n: masks, an even number.
        keep: probability that a patch stays.
        remove: how the others are removed; see `Remover`.
        classic: the published form, sum_i y_i m_i / (n keep), which mixes a patch's effect with the mean score.
        target: class index or name.
        score: what is measured.
        instead_of: the other class of a contrast.
        batch_size: forward passes at once.
        seed: of the masks, the same for every picture.
        advance: called with the number of forward passes done.

    Returns:
        A map in the score's unit; each cell's standard error is `details["standard_error"]` (B, h, w).

    Source: Petsiuk, Das and Saenko 2018 (RISE), with masks on the grid of patches.
    """
    if n < 4 or n % 2 or not 0 < keep < 1:
        raise ConfigError(f"RISE needs an even number of masks from 4 on and keep in (0, 1), got {n} and {keep}")
    question = ask(subject, images, target=target, score=score, instead_of=instead_of)
    pairs = keep == 0.5
    kept = _masks(n, question.grid[0] * question.grid[1], keep, pairs, seed)  # (n, N) bool

    def compute(question: Question) -> tuple[Tensor, Details]:
        taken = Remover(question, remove, batch_size=batch_size, seed=seed, advance=advance)
        which, removed = requests(question, ~kept)
        which = which.to(question.images.device)
        y = question.score_of(taken(which, removed), which).view(len(question.images), n)  # (B, n)
        m = kept.to(y)  # (n, N)
        if pairs:  # the regression, pair by pair
            differences = (y[:, : n // 2] - y[:, n // 2 :])[..., None] * (2 * m[: n // 2] - 1)  # (B, n/2, N)
            slope, error = differences.mean(dim=1), differences.std(dim=1) / (n // 2) ** 0.5
        else:
            y0, m0 = y - y.mean(dim=1, keepdim=True), m - m.mean(dim=0)
            spread = m0.square().sum(dim=0)  # (N,)
            slope = y0 @ m0 / spread  # (B, N)
            rest = y0[..., None] - slope[:, None] * m0  # (B, n, N)
            error = (rest.square().sum(dim=1) / (n - 2) / spread).sqrt()
        values = y @ m / (n * keep) if classic else slope
        return values.unflatten(1, question.grid), {"standard_error": error.unflatten(1, question.grid)}

    return explain(
        question,
        compute,
        method="rise",
        kind=Kind.INTERVENTION,
        caption="What happens when this patch is removed together with a random half of the others",
        remove=remove,
        n=n,
        keep=keep,
        classic=classic,
        seed=seed,
    )


def _masks(n: int, patches: int, keep: float, pairs: bool, seed: int) -> Tensor:
    """(n, patches) bool, True where kept; never all, never none."""
    generator, found = torch.Generator().manual_seed(seed), torch.empty(0, patches, dtype=torch.bool)
    wanted = n // 2 if pairs else n
    while len(found) < wanted:
        drawn = torch.rand(wanted, patches, generator=generator) < keep
        found = torch.cat([found, drawn[drawn.any(dim=1) & ~drawn.all(dim=1)]])[:wanted]
    return torch.cat([found, ~found]) if pairs else found
