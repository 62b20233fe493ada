"""What one training run is told: length, rates, optimizer, precision, and when to look, save and stop."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from course_lib.checks import Count, CountOrZero, NotNegative, Positive, Share, Within, check_fields, checked
from course_lib.training.schedules import cosine_schedule, linear_schedule, noam_schedule, warmup_stable_decay_schedule

__all__ = ["TrainingConfig"]

Schedule = Literal["constant", "linear", "cosine", "warmup_stable_decay", "noam"]
OptimizerName = Literal["adamw", "muon"]
Precision = Literal["float32", "bfloat16"]
Parallel = Literal["ddp", "fsdp"]

FORMER_NAMES = {"checkpoint_activations": "recompute"}  # of settings, in recipes that were written before


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a `Run`. Raises ValueError or TypeError that names the field."""

    # Length and rates
    steps: Count = 1000  # updates of the weights
    learning_rate: Positive = 1e-3  # the highest of the schedule
    schedule: Schedule = "cosine"  # how the rate falls after the warm-up
    warmup: CountOrZero = 0  # updates in which the rate rises
    decay: CountOrZero = 0  # updates of the fall of "warmup_stable_decay"
    final_rate: NotNegative = 0.0  # where the schedule falls to, as a share of learning_rate

    # Updates
    optimizer: OptimizerName = "adamw"  # "muon" takes the matrices inside layers, AdamW the rest
    betas: tuple[Share, Share] = (0.9, 0.98)  # of AdamW: shares of the old means that stay
    eps: Positive = 1e-9  # of AdamW, added below the fraction
    weight_decay: NotNegative = 0.01  # of matrices; never of norms, biases and embeddings
    muon_learning_rate: Positive = 0.02  # of the matrices inside layers, with optimizer "muon"
    muon_momentum: Share = 0.95  # share of the old mean that stays
    muon_steps: Annotated[int, Within(1, 100)] = 5  # Newton-Schulz iterations an update
    clip: Positive | None = 1.0  # largest norm of the gradient
    accumulation: Count = 1  # batches an update
    precision: Precision = "float32"  # "bfloat16" runs matrix products under autocast
    compile: bool = False  # by torch.compile
    recompute: bool = False  # keep only each layer's input and compute the rest again: less memory

    # Looking, saving, stopping
    log_every: Count = 10  # updates between lines of log.jsonl
    evaluate_every: CountOrZero = 0  # updates between held-out evaluations; 0: only at the end
    patience: CountOrZero = 0  # stop after so many evaluations without a better one; 0: never
    checkpoint_every: CountOrZero = 0  # updates between checkpoints; 0: only at the end or at an interrupt
    keep: Count = 3  # checkpoints that stay
    tensorboard: bool = False  # curves for TensorBoard, too

    # Where and from what
    parallel: Parallel = "ddp"  # how several processes share the work: copies, or shards of the weights
    seed: Annotated[int, Within(0, 2**53)] = 0  # of what is drawn while training; `course train` draws all by it

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_fields(self)
        object.__setattr__(self, "betas", tuple(self.betas))  # TOML and JSON have lists
        if self.patience and not self.evaluate_every:
            raise ValueError("patience: needs evaluations; set evaluate_every")
        self.rate(1)  # refuses a warm-up that does not fit

    def rate(self, step: int) -> float:
        """Return the learning rate of update `step`, counted from 1."""
        peak, final = self.learning_rate, self.learning_rate * self.final_rate
        if self.schedule == "linear":
            return linear_schedule(step, self.steps, peak=peak, warmup=self.warmup, final=final)
        if self.schedule == "cosine":
            return cosine_schedule(step, self.steps, peak=peak, warmup=self.warmup, final=final)
        if self.schedule == "noam":  # the paper's shape; its peak does not depend on the width here
            warmup = max(self.warmup, 1)
            return peak * noam_schedule(step, 1, warmup) / noam_schedule(warmup, 1, warmup)
        decay = self.decay if self.schedule == "warmup_stable_decay" else 0
        return warmup_stable_decay_schedule(
            step, self.steps, decay=decay, peak=peak, warmup=self.warmup, final=final if decay else peak
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**dataclasses.asdict(self), "betas": list(self.betas)}

    @classmethod
    @checked
    def from_dict(cls, values: dict[str, Any]) -> "TrainingConfig":
        """Build from plain values, those of older recipes too; raises ValueError for a name that is no field."""
        values = {FORMER_NAMES.get(name, name): value for name, value in values.items()}
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"{unknown[0]}: no setting of training; there are {', '.join(sorted(known))}")
        return cls(**values)
