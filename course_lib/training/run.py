"""A training run: a model, a task and data become trained weights, in sight, with interrupts, and resumed exactly."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from course_lib.checks import CountOrZero, checked
from course_lib.config import TransformerConfig
from course_lib.training.checkpoints import checkpoint_path, list_checkpoints, load_checkpoint, save_checkpoint
from course_lib.training.config import TrainingConfig
from course_lib.training.distributed import Batch, Processes
from course_lib.training.feed import Feed
from course_lib.training.folder import RunFolder
from course_lib.training.interrupts import Interrupts
from course_lib.training.logs import Record, RunLog, shorten_log
from course_lib.training.optimizers import build_optimizers, set_rate
from course_lib.training.progress import Progress, Shown, Silent, for_this_place
from course_lib.training.recompute import recompute_activations
from course_lib.training.state import RandomState, load_optimizers, seed_all
from course_lib.training.updates import Update, evaluate, update

__all__ = ["Run"]

_TIMED = 3  # updates before the first estimate


class Run:
    """Trains a model, and keeps everything needed to go on bit for bit.

    Args:
        model: moved to the device of `processes`, or trained where it is.
        task: an object with `loss(model, batch) -> (sum of losses, number of tokens)`, or such a function.
        data: an iterable of dicts of tensors, iterated epoch after epoch. With `state_dict` and `load_state_dict` it is
            taken up where it was; without them the batches are counted, so they must come in the same order again.
        config: the settings; the defaults unless given.
        folder: for checkpoints and logs, as `RunFolder` lays them out; nothing is written unless given.
        evaluation: held-out batches, iterable again and again.
        processes: those that share the run, from `join_processes`; those of torch's process group, or this one alone,
            unless given.
        shown: where progress goes; a panel in a notebook with a front end, lines of text elsewhere, unless given.

    `history` holds the records of the log: step, loss, rate, gradient norm and tokens, and evaluations.
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        task: Any,
        data: Iterable[Batch],
        config: TrainingConfig | None = None,
        *,
        folder: str | Path | None = None,
        evaluation: Iterable[Batch] | None = None,
        processes: Processes | None = None,
        shown: Shown | None = None,
    ) -> None:
        self.config = TrainingConfig() if config is None else config
        if self.config.evaluate_every and evaluation is None:
            raise ValueError("evaluation: config.evaluate_every needs held-out batches")
        self.folder = None if folder is None else RunFolder(folder)
        self.loss: Callable[[nn.Module, Batch], tuple[Tensor, Tensor]] = getattr(task, "loss", task)
        if not callable(self.loss):
            raise TypeError(f"task: expected a function or an object with loss(model, batch), got {task!r}")
        first = next(model.parameters(), None)
        if first is None:
            raise ValueError("model: it has no parameters")
        self.processes = Processes.joined(first.device) if processes is None else processes
        self.model = model.to(self.processes.device)
        if self.config.recompute:
            recompute_activations(self.model)
        if self.config.compile:
            model.compile()
        self.wrapped = self.processes.wrap(self.model, self.config.parallel)
        self.optimizers = build_optimizers(self.model, self.config)
        self.feed, self.evaluation = Feed(data), evaluation
        self.history: list[Record] = []
        self.step = self.tokens = 0
        self.new_tokens = 0  # without those before a resume
        self.best: tuple[float, int] | None = None  # held-out loss and step
        self.interrupted = False
        self._waited = 0  # evaluations since the best
        self._sum = [0.0, 0]  # loss and tokens since the last record
        self._best_weights: dict[str, Tensor] | None = None
        self._random: RandomState | None = None
        self._saved_at: float | None = None
        self._saved_step = -1
        self._log = RunLog(None)
        self._shown: Shown | None = shown if self.processes.main else Silent()

    @checked
    def train(self, until: CountOrZero | None = None, *, resume: bool = False) -> "Run":
        """Train to the last step, or to step `until`, or to an interrupt, and save a checkpoint at the end.

        With `resume`, go on from the newest undamaged checkpoint in the folder, if there is one; what was printed and
        logged after it is done again. An interrupt ends the update that runs, saves, and returns; one that comes more
        than two seconds later is raised at once. Raises ValueError if the folder holds another run's checkpoints and
        `resume` is False, if they are of another optimizer, or if another run is writing there.
        """
        with self.folder.locked() if self.folder is not None and self.processes.main else contextlib.nullcontext():
            return self._train(until, resume)

    def _train(self, until: int | None, resume: bool) -> "Run":
        end = self.config.steps if until is None else min(until, self.config.steps)
        shown = self._shown = for_this_place() if self._shown is None else self._shown
        if self.step == 0:
            self._begin(shown, resume)
        main = self.processes.main
        waiting = self._log.waiting
        self._log = RunLog(self.folder if main else None, tensorboard=self.config.tensorboard and main)
        self._log.waiting = waiting
        outside = RandomState.now()
        self._enter_random()
        self.interrupted = False
        try:
            with Interrupts() as interrupts:
                self._loop(end, shown, interrupts)
                self._random = RandomState.now()
                if self.step != self._saved_step:
                    self._save(shown, last=True)
        finally:
            outside.restore()
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
        return evaluate(self.wrapped, self.loss, batches, precision=self.config.precision, processes=self.processes)

    def restore_best(self) -> float:
        """Put back the weights of the best evaluation, and return its loss; needs config.patience or evaluations."""
        if self.best is None:
            raise ValueError("best: there was no evaluation yet")
        if self._best_weights is not None:
            self.model.load_state_dict(self._best_weights)
        elif self.folder is not None and (path := checkpoint_path(self.folder.checkpoints, self.best[1])).exists():
            load_checkpoint(path, self.model, random=False)
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
            result = self._update(batches, interrupts)
            times.lap(result.tokens)
            held_out = self._evaluate(shown, interrupts) if self._due(config.evaluate_every) else None
            recorded = self._record(result, rate, held_out)
            if self._due(config.checkpoint_every) and self.step < end:
                self._save(shown)
            times.skip()
            shown.update(self._progress(result, rate, held_out, recorded, times, end))

    def _update(self, batches: list[Batch], interrupts: Interrupts) -> Update:
        try:
            result = update(
                self.wrapped,
                self.loss,
                batches,
                self.optimizers,
                clip=self.config.clip,
                precision=self.config.precision,
                processes=self.processes,
                stop=interrupts.asked,
            )
        except FloatingPointError as error:
            kept = [] if self.folder is None else list_checkpoints(self.folder.checkpoints)
            last = f"; the last checkpoint is {kept[-1]}" if kept else ""
            raise FloatingPointError(f"step {self.step + 1}: {error}{last}") from None
        self.step += 1
        self.tokens += result.tokens
        self.new_tokens += result.tokens
        self._sum = [self._sum[0] + result.loss * result.tokens, self._sum[1] + result.tokens]
        self.interrupted = result.stop
        return result

    def _due(self, every: int) -> bool:
        return (every > 0 and self.step % every == 0) or self.step == self.config.steps

    def _stopped_early(self) -> bool:
        return 0 < self.config.patience <= self._waited

    def _evaluate(self, shown: Shown, interrupts: Interrupts) -> float | None:
        if self.evaluation is None:
            return None
        value = evaluate(
            self.wrapped,
            self.loss,
            self.evaluation,
            precision=self.config.precision,
            processes=self.processes,
            stop=interrupts.asked,
        )
        if math.isnan(value) and interrupts.asked():
            self.interrupted = True
            return None
        best = math.inf if self.best is None else self.best[0]
        if value < best:  # NaN is not
            self.best, self._waited = (value, self.step), 0
            if self.config.patience and self.folder is not None:
                self._save(shown)
            elif self.config.patience:
                self._best_weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        else:
            self._waited += 1
            if self._stopped_early():
                shown.say(f"stopped at step {self.step}: {self._waited} evaluations, none below {best:.4f}")
        return value

    def _record(self, result: Update, rate: float, held_out: float | None) -> bool:
        if not (self._due(self.config.log_every) or held_out is not None or self.step == 1):
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
        known = bool(self._log.waiting)
        try:
            self._log.write(record)
        except OSError as error:
            if not known and self._shown is not None:
                self._shown.say(f"step {self.step} not logged ({error.strerror or error}); training goes on")
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
        if self.folder is None:
            return
        state = {
            "tokens": self.tokens,
            "best": self.best,
            "waited": self._waited,
            "sum": self._sum,
            "data": self.feed.state(),
            "config": self.config.to_dict(),
            "model": self._switches(),
        }
        protect = {self.best[1]} if self.best is not None and self.config.patience else set()
        where, keep = self.folder.checkpoints, self.config.keep
        try:
            save_checkpoint(where, self.step, self.model, self.optimizers, state=state, keep=keep, protect=protect)
            self._saved_at, self._saved_step = time.monotonic(), self.step
        except OSError as error:
            kept = list_checkpoints(where)
            old = f"the last one is {kept[-1].name}" if kept else "there is none yet"
            message = f"checkpoint of step {self.step} not saved ({error.strerror or error}); {old}"
            if last:
                raise OSError(error.errno, message) from None
            shown.say(message)

    def _begin(self, shown: Shown, resume: bool) -> None:
        """Go on from the folder's newest checkpoint, or make sure that nothing of another run is there."""
        if resume and self.folder is None:
            raise ValueError("resume: this run has no folder to resume from")
        if self.folder is None:
            return
        kept = list_checkpoints(self.folder.checkpoints)
        if kept and not resume:
            raise ValueError(f"folder: {self.folder} holds checkpoints of an earlier run; resume it, or name another")
        if kept:
            self._resume(self.folder, shown)
        if self.processes.main:
            self.history = shorten_log(self.folder.log, self.step)

    def _resume(self, folder: RunFolder, shown: Shown) -> None:
        found = load_checkpoint(folder.checkpoints, self.model, random=False)
        was, now = found.state["config"].get("optimizer"), self.config.optimizer
        if was not in (None, now):
            raise ValueError(f"optimizer: expected {was!r}, with which {found.path} was written, got {now!r}")
        switches, own = found.state.get("model") or {}, self._switches()
        for name in switches.keys() & own.keys():
            if switches[name] != own[name]:
                raise ValueError(f"model: {name} is {own[name]}, and {switches[name]} in {found.path}")
        load_optimizers(self.model, self.optimizers, found.part("optimizer"), str(found.path))
        for problem in found.passed_over:
            shown.say(f"passed over: {problem}")
        state = found.state
        self.step, self.tokens = found.step, state["tokens"]
        self.best = None if state["best"] is None else (state["best"][0], state["best"][1])
        self._waited, self._sum = state["waited"], list(state["sum"])
        self.feed.load(state["data"])
        if len(found.random) == self.processes.world:
            self._random = found.random[self.processes.rank]
        self._saved_at, self._saved_step = time.monotonic(), self.step
        changed = [k for k, v in self.config.to_dict().items() if k in state["config"] and state["config"][k] != v]
        shown.say(
            f"resumed at step {self.step}"
            + "".join(f", {k} changed from {state['config'][k]} to {getattr(self.config, k)}" for k in changed)
        )

    def _switches(self) -> dict[str, str]:
        """What the config of the model says, where it has one: its weights do not tell how many heads they serve."""
        config = getattr(self.model, "config", None)
        return (
            {name: str(value) for name, value in vars(config).items()} if isinstance(config, TransformerConfig) else {}
        )

    def _enter_random(self) -> None:
        """Turn to the run's own random numbers, so that what else draws does not matter to it."""
        if self._random is not None:
            self._random.restore()
        else:  # the start, or a resume with another number of processes
            seed_all(self.config.seed + 1_000_003 * self.step + self.processes.rank)


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
