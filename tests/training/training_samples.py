"""What the tests of training share: a small model, ragged batches, a run, and a hash of all weights."""

import hashlib

import torch

from course_lib.training import Run, Silent, TrainingConfig, tasks
from course_lib.training.state import model_tensors
from course_lib.transformer import Transformer, TransformerConfig
from coursework.corpora import copy_task

PAD, START, END, V = 0, 1, 2, 12
TASK = tasks.Translation(pad_id=PAD, smoothing=0.1)


def small_model(seed=0, **changes):
    """An encoder-decoder with shared tables and dropout."""
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2}
    fields = {**sizes, "vocab_size": V, "pad_id": PAD, "share_vocabulary": True, **changes}
    return Transformer(TransformerConfig(**fields))


def batches(n, *, rows=6, seed=0):
    """Batches of sequences to reverse whose lengths differ, within a batch too."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for number in range(n):
        source, target = copy_task(rows, 3 + number % 3, V, reverse=True, first_id=3, generator=draw)
        target = torch.cat([target.new_full((rows, 1), START), target, target.new_full((rows, 1), END)], dim=1)
        for row in range(0, rows, 2):  # a shorter target
            target[row, -1], target[row, -2] = PAD, END
        found.append({"source": source, "target": target})
    return found


def small_run(folder=None, *, model=None, data=None, shown=None, task=TASK, **more):
    settings = {"steps": 12, "learning_rate": 3e-3, "warmup": 3, "log_every": 1, **more}
    others = {name: settings.pop(name) for name in ("evaluation", "processes") if name in settings}
    model = small_model() if model is None else model
    data = batches(5) if data is None else data
    shown = Silent() if shown is None else shown
    return Run(model, task, data, TrainingConfig(**settings), folder=folder, shown=shown, **others)


def weights_hash(model):
    """The same for the same weights, bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model_tensors(model).items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def losses(run):
    return [record["loss"] for record in run.history]
