"""The training loop: a pure function of (model, recipe, data, step)."""

import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F

from vitreous.data.augment import Augmentation
from vitreous.data.loading import Broken, TrainingPictures, batches
from vitreous.data.mixing import Mixing
from vitreous.data.source import Split
from vitreous.errors import VitreousError
from vitreous.model import VisionTransformer
from vitreous.preprocess import Preprocess
from vitreous.progress import progress
from vitreous.seeds import derive
from vitreous.training.optimizer import clip_global_norm, make_optimizer
from vitreous.training.recipe import Recipe
from vitreous.training.schedule import learning_rate
from vitreous.training.state import load_state, save_state

logger = logging.getLogger("vitreous")
STATE, LOG = "state.safetensors", "log.jsonl"
Evaluate = Callable[[], dict[str, float]]


class Interrupted(VitreousError):
    """The run was asked to stop; its state is saved and `--resume` goes on from there."""


@dataclass
class Loop:
    """One run over the stream of pictures, from wherever its folder says it stopped.

    Args:
        model: trained in place.
        split: the training pictures.
        preprocess: normalisation and size.
        recipe: everything else.
        out: the run's folder: `state.safetensors`, and `log.jsonl` with a line per step.
        identity: what a resumed run must agree with.
        evaluate: called every `recipe.eval_every` steps; its values go into the log.
    """

    model: VisionTransformer
    split: Split
    preprocess: Preprocess
    recipe: Recipe
    out: Path
    identity: dict[str, Any]
    evaluate: Evaluate
    num_workers: int | None = None
    show_progress: bool = True
    log: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[Broken] = field(default_factory=list)
    _known_broken: set[int] = field(default_factory=set)

    def run(self, resume: bool = False) -> None:
        """Train to the last step, or until interrupted.

        Raises:
            Interrupted: on Ctrl-C or SIGTERM, after saving the state.
            VitreousError: a picture that cannot be read, or a loss that is not finite.
        """
        from lightning_fabric import Fabric

        recipe = self.recipe
        fabric = Fabric(devices=1, precision="bf16-mixed" if recipe.precision == "bfloat16" else "32-true")
        optimizer = make_optimizer(self.model, recipe)
        model, fabric_optimizer = fabric.setup(self.model, optimizer)
        first = load_state(self.out / STATE, self.model, optimizer, self.identity) if resume else 0
        self._open_log(first)
        stream = self._stream(first)
        with (
            torch.random.fork_rng(),
            progress("training", (recipe.steps - first) * recipe.batch_size, show=self.show_progress) as advance,
            stop_requests() as stop,
            (self.out / LOG).open("a", encoding="utf-8") as log_file,
        ):
            for step in range(first, recipe.steps):
                rate = self._learning_rate(step)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                loss, used, skipped = 0.0, 0, len(self.skipped)
                self.model.train()
                for part in range(recipe.accum_steps):
                    images, targets = (tensor.to(fabric.device) for tensor in next(stream))
                    if not len(images):
                        continue  # none of this part can be read
                    torch.manual_seed(derive(recipe.seed, "dropout", step, part))
                    logits = model(images)  # (B / accum, K)
                    smoothing = recipe.label_smoothing
                    part_loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
                    fabric.backward(part_loss / recipe.batch_size)
                    loss += part_loss.item() / recipe.batch_size
                    used += len(images)
                loss *= self._mean_over(used, step)
                norm = clip_global_norm(self.model.parameters(), recipe.grad_clip).item()
                self._check_finite(step, loss, norm, rate)
                fabric_optimizer.step()
                fabric_optimizer.zero_grad()
                entry: dict[str, Any] = {"step": step, "loss": loss, "lr": rate, "grad_norm": norm}
                if gaps := self.skipped[skipped:]:
                    entry["skipped"] = self._report(gaps)
                done = step + 1
                if recipe.eval_every and done % recipe.eval_every == 0 and done < recipe.steps:
                    entry |= self.evaluate()
                self.log.append(entry)
                log_file.write(json.dumps(entry) + "\n")
                advance(recipe.batch_size, note=f"loss {loss:.4f}")
                if done == recipe.steps or done % recipe.checkpoint_every == 0 or stop.is_set():
                    log_file.flush()
                    save_state(self.out / STATE, done, self.model, optimizer, self.identity)
                if stop.is_set() and done < recipe.steps:
                    raise Interrupted(f"stopped after step {done} of {recipe.steps}; go on with --resume")
        self.model.eval()

    def _stream(self, first: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        recipe = self.recipe
        augmentation = Augmentation(
            self.preprocess,
            recipe.crop_area,
            recipe.flip,
            recipe.augment,
            recipe.augment_layers,
            recipe.augment_magnitude,
            recipe.erasing,
        )
        mixing = None
        if recipe.mixup or recipe.cutmix_alpha:
            classes = len(self.split.classes)
            mixing = Mixing(recipe.batch_size, classes, recipe.mixup, recipe.cutmix_alpha, recipe.seed)
        pictures = TrainingPictures(self.split, augmentation, recipe.seed, mixing)
        positions = range(first * recipe.batch_size, recipe.steps * recipe.batch_size)
        skipped = self.skipped if recipe.on_broken == "skip" else None
        return batches(pictures, positions, recipe.batch_size // recipe.accum_steps, self.num_workers, skipped)

    def _mean_over(self, used: int, step: int) -> float:
        """Make a sum over `used` pictures, divided by the batch size, their mean; the factor that does it."""
        if not used:
            raise VitreousError(f"none of the {self.recipe.batch_size} pictures of step {step} can be read")
        factor = self.recipe.batch_size / used
        if factor != 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        return factor

    def _report(self, gaps: list[Broken]) -> list[str]:
        """The names of skipped pictures; why goes to the log of the program, once a picture."""
        for broken in gaps:
            if broken.index not in self._known_broken:
                self._known_broken.add(broken.index)
                logger.warning("skipped %s", broken.error)
        return [self.split.names[broken.index] for broken in gaps]

    def _learning_rate(self, step: int) -> float:
        r = self.recipe
        return learning_rate(
            step,
            steps=r.steps,
            base=r.base_lr,
            warmup_steps=r.warmup_steps,
            decay=r.decay,
            linear_end=r.linear_end,
        )

    def _check_finite(self, step: int, loss: float, norm: float, rate: float) -> None:
        if not (abs(loss) < float("inf") and abs(norm) < float("inf")):  # NaN compares false
            raise VitreousError(
                f"the loss is {loss} and the gradient's norm {norm} at step {step} (learning rate {rate:.2g}): "
                f"try a smaller base_lr, such as {self.recipe.base_lr / 3:.2g}, or a longer warm-up. "
                f"The weights of the last saved state are in {self.out / STATE}"
            )

    def _open_log(self, first: int) -> None:
        """Keep the lines of the steps that the state has seen; a killed run may have written some more."""
        path = self.out / LOG
        lines = path.read_text(encoding="utf-8").splitlines() if first and path.exists() else []
        self.log = [json.loads(line) for line in lines[:first]]
        path.write_text("".join(line + "\n" for line in lines[:first]), encoding="utf-8")


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set an event that the loop looks at between steps; a second Ctrl-C stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals reach the main thread alone
        return

    def request(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
