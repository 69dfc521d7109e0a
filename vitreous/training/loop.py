"""The training loop: a pure function of (model, recipe, data, step), on any number of processes."""

import copy
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.base import processes
from vitreous.base.errors import VitreousError
from vitreous.base.processes import Strategy, fill, whole
from vitreous.base.progress import progress
from vitreous.base.seeds import derive
from vitreous.data.dataset import Split
from vitreous.data.loading import Broken
from vitreous.pictures.preprocess import Preprocess
from vitreous.training.checkpointing import recomputed
from vitreous.training.dropout import DropoutByPosition
from vitreous.training.ema import Average, exchanged
from vitreous.training.log import Log
from vitreous.training.losses import count_correct, total_loss
from vitreous.training.model_parts import frozen
from vitreous.training.optimizer import clip_global_norm, make_optimizer, set_learning_rate
from vitreous.training.recipe import Recipe
from vitreous.training.schedule import learning_rate
from vitreous.training.state import STATE, clear_leftovers, load_state, save_state
from vitreous.training.stream import Part, parts
from vitreous.training.watch import advise, check_finite

logger = logging.getLogger("vitreous")
Evaluate = Callable[[], dict[str, float]]


class Interrupted(VitreousError):
    """The run was asked to stop; its state is saved and `--resume` goes on from there."""


@dataclass
class Loop:
    """One run over the stream of pictures, from wherever its folder says it stopped.

    Args:
        model: any that makes logits (B, K) of images (B, C, H, W); trained in place.
        split: the training pictures.
        preprocess: normalisation and size.
        recipe: everything else.
        out: the run's folder: `state.safetensors`, and `log.jsonl` with a line per step.
        identity: what a resumed run must agree with.
        evaluate: measures `model` every `recipe.eval_every` steps, and with its average weights too; goes into the log.
        num_workers: processes that decode pictures, for each of those that compute.
        strategy: on several processes: `"ddp"` or `"fsdp"`.
        tensorboard: write curves into the run's folder.
    """

    model: nn.Module
    split: Split
    preprocess: Preprocess
    recipe: Recipe
    out: Path
    identity: dict[str, Any]
    evaluate: Evaluate
    num_workers: int | None = None
    show_progress: bool = True
    strategy: Strategy = "ddp"
    tensorboard: bool = False
    log: list[dict[str, Any]] = field(default_factory=list)
    averaged: dict[str, Tensor] | None = None  # the average weights, once the run has ended
    _known_broken: set[int] = field(default_factory=set)

    def run(self, resume: bool = False) -> None:
        """Train to the last step, or until interrupted.

        Raises:
            Interrupted: on Ctrl-C or SIGTERM, after saving the state.
            VitreousError: a picture that cannot be read, a loss that is not finite, or a full disk.
        """
        recipe = self.recipe
        fabric = processes.connect(self.strategy, "bf16-mixed" if recipe.precision == "bfloat16" else "32-true")
        sharded = self.strategy == "fsdp" and processes.count() > 1
        with ExitStack() as stack:
            stack.enter_context(frozen(self.model, recipe.freeze))
            trained = copy.deepcopy(self.model) if sharded else self.model
            stack.enter_context(recomputed(trained, recipe.grad_checkpointing))
            module = fabric.setup_module(trained)
            optimizer = make_optimizer(trained, recipe)
            average = Average(trained, recipe.ema_decay) if recipe.ema_decay else None
            first = load_state(self.out, trained, optimizer, average, self.identity) if resume else 0
            if processes.is_first():
                clear_leftovers(self.out)
            log = Log(self.out, first, self.tensorboard)
            stack.callback(log.close)
            self.log = log.entries
            stream = parts(self.split, self.preprocess, recipe, first, self.num_workers)
            stack.enter_context(torch.random.fork_rng())
            images, show = (recipe.steps - first) * recipe.batch_size, self.show_progress and processes.is_first()
            advance = stack.enter_context(progress("training", images, show=show))
            stop = stack.enter_context(stop_requests())
            for step in range(first, recipe.steps):
                start = time.perf_counter()
                entry, stopping = self._step(step, fabric, module, trained, optimizer, stream, stop)
                if average is not None:
                    average.update(trained, step)
                seconds, done = time.perf_counter() - start, step + 1
                if recipe.eval_every and done % recipe.eval_every == 0 and done < recipe.steps:
                    entry |= self._measure(trained, average)
                log.write(entry, recipe.batch_size, seconds)
                if processes.is_first():
                    advise(self.log, recipe)
                advance(recipe.batch_size, note=f"loss {entry['loss']:.4f}, accuracy {entry['accuracy']:.0%}")
                if done == recipe.steps or done % recipe.checkpoint_every == 0 or stopping:
                    log.flush()
                    save_state(self.out, done, trained, optimizer, average, self.identity)
                if stopping and done < recipe.steps:
                    raise Interrupted(f"stopped after step {done} of {recipe.steps}; go on with --resume")
            self._bring_together(trained)
            self.averaged = None if average is None else {n: whole(t) for n, t in average.tensors.items()}
        self.model.eval()

    def _step(
        self,
        step: int,
        fabric: Any,
        module: Any,
        trained: nn.Module,
        optimizer: torch.optim.Optimizer,
        stream: Iterator[Part],
        stop: threading.Event,
    ) -> tuple[dict[str, Any], bool]:
        """One step of the optimiser: what goes into the log, and whether a process was asked to stop."""
        recipe, several = self.recipe, processes.count() > 1
        loss, correct, used, gaps = 0.0, 0.0, 0, list[Broken]()
        rate = self._learning_rate(step)
        set_learning_rate(optimizer, rate)
        trained.train()
        for number in range(recipe.accum_steps):
            part = next(stream)
            gaps += part.gaps
            images, targets = part.images.to(fabric.device), part.targets.to(fabric.device)
            used += len(images)
            seeds = [derive(recipe.seed, "dropout", position) for position in part.positions]
            if not len(images):  # none of this part can be read
                if not several:
                    continue
                images, seeds = images.new_zeros(1, *images.shape[1:]), [0]  # the other processes wait for its gradient
            last = number == recipe.accum_steps - 1
            with fabric.no_backward_sync(module, enabled=not last) if several else nullcontext():
                with DropoutByPosition(seeds, fabric.device):
                    logits = module(images)  # (b, K)
                if len(targets):
                    part_loss = total_loss(logits, targets, recipe.loss, recipe.label_smoothing)
                    correct += count_correct(logits, targets)
                else:
                    part_loss = 0.0 * logits.sum()
                # Over the processes gradients are averaged, and parts of a batch add up.
                fabric.backward(part_loss * (processes.count() / recipe.batch_size))
            loss += part_loss.item()
        if recipe.on_broken == "skip":
            gaps = [gap for found in processes.gather(gaps) for gap in found]
        loss, correct, images_used, stops = processes.total([loss, correct, used, stop.is_set()], fabric.device)
        if not images_used:
            raise VitreousError(f"none of the {recipe.batch_size} pictures of step {step} can be read")
        loss /= images_used
        if images_used != recipe.batch_size:  # the gradient of the mean over those that are there
            for parameter in trained.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(recipe.batch_size / images_used)
        norm = clip_global_norm(trained.parameters(), recipe.grad_clip).item()
        check_finite(step, loss, norm, rate, recipe, self.out / STATE)
        optimizer.step()
        optimizer.zero_grad()
        entry: dict[str, Any] = {"step": step, "loss": loss, "accuracy": correct / images_used}
        entry |= {"lr": rate, "grad_norm": norm}
        if gaps:
            entry["skipped"] = self._report(gaps)
        return entry, bool(stops)

    def _measure(self, trained: nn.Module, average: Average | None) -> dict[str, float]:
        """The scores of the weights, and of their average."""
        self._bring_together(trained)
        found = self.evaluate()
        if average is not None:
            with exchanged(self.model, {name: whole(tensor) for name, tensor in average.tensors.items()}):
                found |= {f"ema_{name}": value for name, value in self.evaluate().items()}
        return found

    def _bring_together(self, trained: nn.Module) -> None:
        """The weights that are trained in shares, whole again in `model`."""
        if trained is not self.model:
            values = trained.state_dict()
            for name, tensor in self.model.state_dict().items():
                fill(tensor, whole(values[name]))

    def _report(self, gaps: list[Broken]) -> list[str]:
        """The names of skipped pictures; why goes to the log of the program, once a picture."""
        for broken in gaps:
            if broken.index not in self._known_broken and processes.is_first():
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
