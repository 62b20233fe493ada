"""Training: losses, schedules, optimizers, and a run that can be watched, interrupted and taken up again bit for bit.

Knows models through `forward` and a task's `loss(model, batch) -> (sum of losses, number of tokens)` only.
"""

from course_lib.training import tasks
from course_lib.training.checkpoints import (
    Checkpoint,
    CheckpointError,
    average_checkpoints,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from course_lib.training.chunked import chunked_cross_entropy
from course_lib.training.config import TrainingConfig
from course_lib.training.distributed import Processes, join_processes
from course_lib.training.folder import RunFolder
from course_lib.training.losses import cross_entropy, label_smoothed_cross_entropy
from course_lib.training.optimizers import Muon, build_optimizers, newton_schulz, parameter_groups
from course_lib.training.progress import Lines, Silent
from course_lib.training.recompute import recompute_activations
from course_lib.training.run import Run
from course_lib.training.schedules import (
    cosine_schedule,
    linear_schedule,
    noam_schedule,
    warmup_stable_decay_schedule,
)
from course_lib.training.updates import clip_gradients, evaluate, update

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Lines",
    "Muon",
    "Processes",
    "Run",
    "RunFolder",
    "Silent",
    "TrainingConfig",
    "average_checkpoints",
    "build_optimizers",
    "chunked_cross_entropy",
    "clip_gradients",
    "cosine_schedule",
    "cross_entropy",
    "evaluate",
    "join_processes",
    "label_smoothed_cross_entropy",
    "linear_schedule",
    "list_checkpoints",
    "load_checkpoint",
    "newton_schulz",
    "noam_schedule",
    "parameter_groups",
    "recompute_activations",
    "save_checkpoint",
    "tasks",
    "update",
    "warmup_stable_decay_schedule",
]
