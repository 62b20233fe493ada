"""A training run: a model, a task and data become trained weights, in sight, with interrupts, and resumed exactly."""

import copy
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from course_lib.training.checkpoints import list_checkpoints, read_checkpoint, write_checkpoint
from course_lib.training.config import TrainingConfig
from course_lib.training.distributed import Batch, Ranks
from course_lib.training.feed import Feed
from course_lib.training.interrupts import Interrupts
from course_lib.training.logs import Record, RunLog
from course_lib.training.optimizers import build_optimizers, set_rate
from course_lib.training.progress import Progress, Shown, Silent, for_this_place
from course_lib.training.recompute import checkpoint_activations
from course_lib.training.state import (
    load_model,
    load_optimizers,
    load_random_state,
    model_tensors,
    optimizer_tensors,
    random_tensors,
    seed_all,
)
from course_lib.training.updates import Update, evaluate, update

__all__ = ["Run"]

_TIMED = 3  # updates before the first estimate


class Run:
    """Trains a model, and keeps everything needed to go on bit for bit.

    Args:
        model: moved to the device of `ranks`, or trained where it is.
        task: an object with `loss(model, batch) -> (sum of losses, number of tokens)`, or such a function.
        data: an iterable of dicts of tensors, iterated epoch after epoch. With `state_dict` and `load_state_dict` it is
            taken up where it was; without them the batches are counted, so they must come in the same order again.
        config: the settings; the defaults unless given.
        folder: for checkpoints and logs; nothing is written unless given.
        evaluation: held-out batches, iterable again and again.
        ranks: the processes that share the run, from `processes`; this one alone unless given.
        shown: where progress goes; a panel in a notebook with a front end, lines of text elsewhere, unless given.

    `history` holds the records of the log: step, loss, rate, gradient norm and tokens, and evaluations.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Any,
        data: Iterable[Batch],
        config: TrainingConfig | None = None,
        *,
        folder: str | Path | None = None,
        evaluation: Iterable[Batch] | None = None,
        ranks: Ranks | None = None,
        shown: Shown | None = None,
    ) -> None:
        self.config = TrainingConfig() if config is None else config
        if self.config.evaluate_every and evaluation is None:
            raise ValueError("evaluation: config.evaluate_every needs held-out batches")
        self.folder = None if folder is None else Path(folder)
        self.checkpoints = None if folder is None else Path(folder) / "checkpoints"
        self.loss: Callable[[nn.Module, Batch], tuple[Tensor, Tensor]] = getattr(task, "loss", task)
        if not callable(self.loss):
            raise TypeError(f"task: expected a function or an object with loss(model, batch), got {task!r}")
        first = next(model.parameters(), None)
        if first is None:
            raise ValueError("model: it has no parameters")
        self.ranks = Ranks(device=first.device) if ranks is None else ranks
        self.model = model.to(self.ranks.device)
        if self.config.checkpoint_activations:
            checkpoint_activations(self.model)
        if self.config.compile:
            model.compile()
        self.wrapped = self.ranks.wrap(self.model, self.config.parallel)
        self.optimizers = build_optimizers(self.model, self.config)
        self.feed, self.evaluation = Feed(data), evaluation
        self.history: list[Record] = []
        self.step = self.tokens = 0
        self.best: tuple[float, int] | None = None  # held-out loss and step
        self.interrupted = False
        self._waited = 0  # evaluations since the best
        self._sum = [0.0, 0]  # loss and tokens since the last record
        self._best_weights: dict[str, Tensor] | None = None
        self._random: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self._saved_at: float | None = None
        self._saved_step = -1
        self._log = RunLog(self.folder if self.ranks.main else None, tensorboard=False)
        self._shown: Shown | None = shown if self.ranks.main else Silent()

    def train(self, until: int | None = None, *, resume: bool = False) -> "Run":
        """Train to the last step, or to step `until`, or to an interrupt, and save a checkpoint at the end.

        With `resume`, go on from the newest undamaged checkpoint in the folder, if there is one; what was printed and
        logged after it is done again. An interrupt ends the update that runs, saves, and returns; a second one is
        raised at once. Raises ValueError if the folder holds another run's checkpoints and `resume` is False.
        """
        end = self.config.steps if until is None else min(until, self.config.steps)
        shown = self._shown = for_this_place() if self._shown is None else self._shown
        if resume and self.step == 0:
            self._resume(shown)
        elif self.step == 0 and self.checkpoints is not None and list_checkpoints(self.checkpoints):
            raise ValueError(f"folder: {self.folder} holds checkpoints of an earlier run; resume it, or name another")
        if self.ranks.main and self.step == 0:
            self._log.restart(0)
        self._log = RunLog(self.folder if self.ranks.main else None, tensorboard=self._writes_tensorboard())
        outside = random_tensors()
        self._enter_random()
        self.interrupted = False
        try:
            with Interrupts() as interrupts:
                self._loop(end, shown, interrupts)
                self._random = random_tensors()
                if self.step != self._saved_step:
                    self._save(shown, last=True)
        finally:
            load_random_state(*outside)
            self._log.close()
        if self.interrupted:
            kept = "checkpoint saved" if self.folder is not None else "the run is kept in memory"
            shown.say(f"interrupted at step {self.step}, {kept}")
        if self.history:
            shown.end(self.history)
        return self

    def evaluate(self, batches: Iterable[Batch] | None = None) -> float:
        """Return the loss per token of held-out batches, those of the run unless given, without dropout."""
        batches = self.evaluation if batches is None else batches
        if batches is None:
            raise ValueError("batches: this run has no held-out batches")
        return evaluate(self.wrapped, self.loss, batches, precision=self.config.precision, ranks=self.ranks)

    def restore_best(self) -> float:
        """Put back the weights of the best evaluation, and return its loss; needs config.patience or evaluations."""
        if self.best is None:
            raise ValueError("best: there was no evaluation yet")
        if self._best_weights is not None:
            load_model(self.model, self._best_weights, "the best weights")
        elif self.checkpoints is not None and (path := self.checkpoints / f"step-{self.best[1]:08d}.json").exists():
            load_model(self.model, read_checkpoint(path).part("model"), str(path))
        else:
            raise ValueError(f"best: the weights of step {self.best[1]} were not kept; set config.patience")
        return self.best[0]

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _loop(self, end: int, shown: Shown, interrupts: Interrupts) -> None:
        config, times = self.config, _Clock()
        self.wrapped.train()
        while self.step < end and not self.interrupted and not self._stopped_early():
            batches = [self.feed.next() for _ in range(config.accumulation)]
            rate = config.rate(self.step + 1)
            set_rate(self.optimizers, rate)
            try:
                result = update(
                    self.wrapped,
                    self.loss,
                    batches,
                    self.optimizers,
                    clip=config.clip,
                    precision=config.precision,
                    ranks=self.ranks,
                    whole=self.feed.whole,
                    stop=interrupts.asked,
                )
            except FloatingPointError as error:
                raise FloatingPointError(f"step {self.step + 1}: {error}{self._where_to_go_on()}") from None
            self.step += 1
            self.tokens += result.tokens
            self._sum = [self._sum[0] + result.loss * result.tokens, self._sum[1] + result.tokens]
            times.lap(result.tokens)
            self.interrupted = result.stop
            held_out = None
            if self.evaluation is not None and self._due(config.evaluate_every, end):
                held_out = self._evaluate(shown, interrupts)
            recorded = self._record(result, rate, held_out, end)
            if self._due(config.checkpoint_every, end) and self.step < end:
                self._save(shown)
            times.skip()
            shown.update(self._progress(result, rate, held_out, recorded, times, end))

    def _due(self, every: int, end: int) -> bool:
        return (every > 0 and self.step % every == 0) or self.step == self.config.steps

    def _stopped_early(self) -> bool:
        return 0 < self.config.patience <= self._waited

    def _evaluate(self, shown: Shown, interrupts: Interrupts) -> float | None:
        value = evaluate(
            self.wrapped,
            self.loss,
            self.evaluation or (),
            precision=self.config.precision,
            ranks=self.ranks,
            stop=interrupts.asked,
        )
        if math.isnan(value) and interrupts.asked():
            self.interrupted = True
            return None
        if self.best is None or value < self.best[0]:
            self.best, self._waited = (value, self.step), 0
            if self.config.patience and self.folder is not None:
                self._save(shown)
            elif self.config.patience:
                self._best_weights = copy.deepcopy(model_tensors(self.model))
        else:
            self._waited += 1
            if self._stopped_early():
                shown.say(f"stopped at step {self.step}: {self._waited} evaluations, none below {self.best[0]:.4f}")
        return value

    def _record(self, result: Update, rate: float, held_out: float | None, end: int) -> bool:
        if not (self._due(self.config.log_every, end) or held_out is not None or self.step == 1):
            return False
        record = {
            "step": self.step,
            "loss": self._sum[0] / max(self._sum[1], 1),
            "rate": rate,
            "gradient_norm": result.gradient_norm,
            "tokens": self.tokens,
        }
        if held_out is not None:
            record["evaluation"] = held_out
        self._sum = [0.0, 0]
        self.history.append(record)
        if self.ranks.main:
            self._log.write(record)
        return True

    def _progress(
        self, result: Update, rate: float, held_out: float | None, recorded: bool, times: "_Clock", end: int
    ) -> Progress:
        return Progress(
            step=self.step,
            steps=end,
            loss=self.history[-1]["loss"] if recorded else result.loss,
            rate=rate,
            gradient_norm=result.gradient_norm,
            tokens=self.tokens,
            tokens_per_second=times.tokens_per_second,
            seconds=times.seconds,
            remaining=times.remaining(end - self.step),
            checkpoint_age=None if self._saved_at is None else time.monotonic() - self._saved_at,
            evaluation=held_out,
            evaluates=self.config.evaluate_every > 0,
        )

    # -- saving and taking up ------------------------------------------------------------------------------------------

    def _save(self, shown: Shown, *, last: bool = False) -> None:
        """Write a checkpoint. A full disk does not end the run; at its end it does, after everything else is done."""
        if self.checkpoints is None:
            return
        tensors = {f"model.{name}": t for name, t in model_tensors(self.model).items()}
        tensors |= {f"optimizer.{name}": t for name, t in optimizer_tensors(self.model, self.optimizers).items()}
        randoms = self.ranks.gather(random_tensors())
        for rank, (found, _) in enumerate(randoms):
            tensors |= {f"random.{rank}/{name}": t for name, t in found.items()}
        state = {
            "tokens": self.tokens,
            "best": self.best,
            "waited": self._waited,
            "sum": self._sum,
            "data": self.feed.state(),
            "random": [numbers for _, numbers in randoms],
            "config": self.config.to_dict(),
        }
        if self.ranks.main:
            protect = {self.best[1]} if self.best is not None and self.config.patience else set()
            try:
                write_checkpoint(self.checkpoints, self.step, tensors, state, keep=self.config.keep, protect=protect)
                self._saved_at, self._saved_step = time.monotonic(), self.step
            except OSError as error:
                kept = list_checkpoints(self.checkpoints)
                old = f"the last one is {kept[-1].name}" if kept else "there is none yet"
                message = f"checkpoint of step {self.step} not saved ({error.strerror or error}); {old}"
                if last:
                    raise OSError(error.errno, message) from None
                shown.say(message)
        self.ranks.barrier()

    def _resume(self, shown: Shown) -> None:
        if self.checkpoints is None:
            raise ValueError("resume: this run has no folder to resume from")
        try:
            found = read_checkpoint(self.checkpoints)
        except FileNotFoundError:
            return
        for problem in found.passed_over:
            shown.say(f"passed over: {problem}")
        where = str(found.path.with_suffix(".safetensors"))
        load_model(self.model, found.part("model"), where)
        load_optimizers(self.model, self.optimizers, found.part("optimizer"), where)
        state = found.state
        self.step, self.tokens = found.step, state["tokens"]
        self.best = None if state["best"] is None else (state["best"][0], state["best"][1])
        self._waited, self._sum = state["waited"], list(state["sum"])
        self.feed.load(state["data"])
        if len(state["random"]) == self.ranks.world:
            prefix = f"{self.ranks.rank}/"
            randoms = {n.removeprefix(prefix): t for n, t in found.part("random").items() if n.startswith(prefix)}
            self._random = (randoms, state["random"][self.ranks.rank])
        self.history = self._log.restart(self.step)
        self._saved_at, self._saved_step = time.monotonic(), self.step
        changed = [k for k, v in self.config.to_dict().items() if k in state["config"] and state["config"][k] != v]
        shown.say(
            f"resumed at step {self.step}"
            + "".join(f", {k} changed from {state['config'][k]} to {getattr(self.config, k)}" for k in changed)
        )

    def _enter_random(self) -> None:
        """Turn to the run's own random numbers, so that what else draws does not matter to it."""
        if self._random is not None:
            load_random_state(*self._random)
        else:  # the start, or a resume with another number of processes
            seed_all(self.config.seed + 1_000_003 * self.step + self.ranks.rank)

    def _where_to_go_on(self) -> str:
        kept = [] if self.checkpoints is None else list_checkpoints(self.checkpoints)
        return f"; the last checkpoint is {kept[-1]}" if kept else ""

    def _writes_tensorboard(self) -> bool:
        return self.config.tensorboard and self.ranks.main


class _Clock:
    """Times updates without what lies between them: evaluations, checkpoints."""

    def __init__(self) -> None:
        self.began = self._mark = time.perf_counter()
        self._laps: list[float] = []
        self._tokens = 0
        self._busy = 0.0

    def lap(self, tokens: int) -> None:
        """Note an update that ends now."""
        taken = time.perf_counter() - self._mark
        self._laps.append(taken)
        if len(self._laps) > 1:  # the first one also warms up, or compiles
            self._busy, self._tokens = self._busy + taken, self._tokens + tokens

    def skip(self) -> None:
        """Leave out the time since the last lap."""
        self._mark = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the beginning, everything included."""
        return time.perf_counter() - self.began

    @property
    def tokens_per_second(self) -> float:
        """Of the updates after the first."""
        return self._tokens / self._busy if self._busy else 0.0

    def remaining(self, steps: int) -> float | None:
        """Seconds for so many more updates, with the share of evaluations and checkpoints so far; None at first."""
        if len(self._laps) < _TIMED:
            return None
        overhead = self.seconds / max(sum(self._laps), 1e-9)
        return steps * self._busy / (len(self._laps) - 1) * overhead
