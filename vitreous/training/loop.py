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
from vitreous.base.errors import Interrupted, VitreousError
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
from vitreous.training.state import STATE, clear_leftovers, has_state, load_state, save_state
from vitreous.training.stream import Part, parts
from vitreous.training.watch import advise, check_finite

logger = logging.getLogger("vitreous")
Evaluate = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class How:
    """What a run's result does not depend on.

    Args:
        resume: whether to go on where the folder's run stopped.
        num_workers: processes that decode pictures, for each of those that compute; None for half of the cores.
        progress: whether a bar on stderr shows how far it is.
        strategy: on several processes: `"ddp"` or `"fsdp"`.
        device: where a single process computes; None for the fastest device there is.
        tensorboard: whether curves are written into the run's folder.
    """

    resume: bool = False
    num_workers: int | None = None
    progress: bool = True
    strategy: Strategy = "ddp"
    device: str | None = None
    tensorboard: bool = False


@dataclass
class Engine:
    """What is set up for one run, and taken down after it."""

    fabric: Any
    module: nn.Module  # as Fabric wraps it
    trained: nn.Module  # the weights that are trained: `model` itself, or its shares
    optimizer: torch.optim.Optimizer
    average: Average | None
    stream: Iterator[Part]
    stop: threading.Event


@dataclass
class Sums:
    """What one step adds up over its parts, and then over the processes."""

    loss: float = 0.0
    correct: float = 0.0
    used: float = 0
    gaps: list[Broken] = field(default_factory=list)
    stops: float = 0  # processes that were asked to stop


@dataclass(kw_only=True)
class Loop:
    """One run over the stream of pictures, from wherever its folder says it stopped.

    Args:
        model: any that makes logits (B, K) of images (B, C, H, W); trained in place.
        split: the training pictures.
        preprocess: normalisation and size.
        recipe: everything that the result depends on.
        out: the run's folder: `state.safetensors`, and `log.jsonl` with a line per step.
        identity: what a resumed run must agree with.
        evaluate: measures `model` every `recipe.eval_every` steps, and with its average weights too; goes into the log.
        how: everything that the result does not depend on.
    """

    model: nn.Module
    split: Split
    preprocess: Preprocess
    recipe: Recipe
    out: Path
    identity: dict[str, Any]
    evaluate: Evaluate
    how: How = field(default_factory=How)
    log: list[dict[str, Any]] = field(default_factory=list)
    averaged: dict[str, Tensor] | None = None  # the average weights, once the run has ended
    _known_broken: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Train to the last step, or until interrupted.

        Raises:
            Interrupted: on Ctrl-C or SIGTERM, after saving the state.
            VitreousError: a picture that cannot be read, a loss that is not finite, or a full disk.
        """
        recipe = self.recipe
        with ExitStack() as stack:
            engine, first = self._start(stack)
            log = Log(self.out, first, self.how.tensorboard)
            stack.callback(log.close)
            self.log = log.entries
            images, show = (recipe.steps - first) * recipe.batch_size, self.how.progress and processes.is_first()
            advance = stack.enter_context(progress("training", images, show=show))
            for step in range(first, recipe.steps):
                start = time.perf_counter()
                entry, stopping = self._step(step, engine)
                if engine.average is not None:
                    engine.average.update(engine.trained, step)
                seconds, done = time.perf_counter() - start, step + 1
                if recipe.eval_every and done % recipe.eval_every == 0 and done < recipe.steps:
                    entry |= self._measure(engine)
                log.write(entry, recipe.batch_size, seconds)
                if processes.is_first():
                    advise(self.log, recipe)
                advance(recipe.batch_size, note=f"loss {entry['loss']:.4f}, accuracy {entry['accuracy']:.0%}")
                if done == recipe.steps or done % recipe.checkpoint_every == 0 or stopping:
                    log.flush()
                    save_state(self.out, done, engine.trained, engine.optimizer, engine.average, self.identity)
                if stopping and done < recipe.steps:
                    raise Interrupted(f"stopped after step {done} of {recipe.steps}; go on with --resume")
            self._bring_together(engine.trained)
            average = engine.average
            self.averaged = None if average is None else {name: whole(t) for name, t in average.tensors.items()}
        self.model.eval()

    def _start(self, stack: ExitStack) -> tuple[Engine, int]:
        """Everything that a run needs, and the step it begins with; the stack takes it down."""
        recipe, how = self.recipe, self.how
        precision = "bf16-mixed" if recipe.precision == "bfloat16" else "32-true"
        fabric = processes.connect(how.strategy, precision, how.device)
        sharded = how.strategy == "fsdp" and processes.count() > 1
        stack.enter_context(frozen(self.model, recipe.freeze))
        trained = copy.deepcopy(self.model) if sharded else self.model
        stack.enter_context(recomputed(trained, recipe.grad_checkpointing))
        module = fabric.setup_module(trained)
        optimizer = make_optimizer(trained, recipe)
        average = Average(trained, recipe.ema_decay) if recipe.ema_decay else None
        resumed = how.resume and has_state(self.out)
        first = load_state(self.out, trained, optimizer, average, self.identity) if resumed else 0
        if processes.is_first():
            clear_leftovers(self.out)
        stream = parts(self.split, self.preprocess, recipe, first, how.num_workers)
        stack.enter_context(torch.random.fork_rng())
        stop = stack.enter_context(stop_requests())
        return Engine(fabric, module, trained, optimizer, average, stream, stop), first

    def _step(self, step: int, engine: Engine) -> tuple[dict[str, Any], bool]:
        """One step of the optimiser: what goes into the log, and whether a process was asked to stop."""
        rate = self._learning_rate(step)
        set_learning_rate(engine.optimizer, rate)
        sums = self._agree(self._accumulate(engine), engine)
        if not sums.used:
            raise VitreousError(f"none of the {self.recipe.batch_size} pictures of step {step} can be read")
        loss = sums.loss / sums.used
        norm = self._update(step, engine, loss, sums.used, rate)
        entry: dict[str, Any] = {"step": step, "loss": loss, "accuracy": sums.correct / sums.used}
        entry |= {"lr": rate, "grad_norm": norm}
        if sums.gaps:
            entry["skipped"] = self._report(sums.gaps)
        return entry, bool(sums.stops)

    def _accumulate(self, engine: Engine) -> Sums:
        """Forward and backward over this process's parts of the batch: gradients add up in the parameters."""
        recipe, sums, several = self.recipe, Sums(), processes.count() > 1
        engine.trained.train()
        for number in range(recipe.accum_steps):
            part = next(engine.stream)
            sums.gaps += part.gaps
            images, targets = part.images.to(engine.fabric.device), part.targets.to(engine.fabric.device)
            sums.used += len(images)
            seeds = [derive(recipe.seed, "dropout", position) for position in part.positions]
            if not len(images):  # none of this part can be read
                if not several:
                    continue
                images, seeds = images.new_zeros(1, *images.shape[1:]), [0]  # the other processes wait for its gradient
            last = number == recipe.accum_steps - 1
            with engine.fabric.no_backward_sync(engine.module, enabled=not last) if several else nullcontext():
                with DropoutByPosition(seeds, engine.fabric.device):
                    logits = engine.module(images)  # (b, K)
                if len(targets):
                    loss = total_loss(logits, targets, recipe.loss, recipe.label_smoothing)
                    sums.correct += count_correct(logits, targets)
                else:
                    loss = 0.0 * logits.sum()
                # Over the processes gradients are averaged, and parts of a batch add up.
                engine.fabric.backward(loss * (processes.count() / recipe.batch_size))
            sums.loss += loss.item()
        return sums

    def _agree(self, sums: Sums, engine: Engine) -> Sums:
        """The sums over all processes."""
        gaps = sums.gaps
        if self.recipe.on_broken == "skip":
            gaps = [gap for found in processes.gather(gaps) for gap in found]
        own = [sums.loss, sums.correct, sums.used, engine.stop.is_set()]
        loss, correct, used, stops = processes.total(own, engine.fabric.device)
        return Sums(loss, correct, used, gaps, stops)

    def _update(self, step: int, engine: Engine, loss: float, used: float, rate: float) -> float:
        """Clip the gradient, check that all is finite, and move the weights; returns the gradient's norm."""
        recipe = self.recipe
        if used != recipe.batch_size:  # the gradient of the mean over those that are there
            for parameter in engine.trained.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(recipe.batch_size / used)
        norm = clip_global_norm(engine.trained.parameters(), recipe.grad_clip).item()
        check_finite(step, loss, norm, rate, recipe, self.out / STATE)
        engine.optimizer.step()
        engine.optimizer.zero_grad()
        return norm

    def _measure(self, engine: Engine) -> dict[str, float]:
        """The scores of the weights, and of their average."""
        self._bring_together(engine.trained)
        found = self.evaluate()
        if engine.average is not None:
            with exchanged(self.model, {name: whole(tensor) for name, tensor in engine.average.tensors.items()}):
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
