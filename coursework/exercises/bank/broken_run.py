"""Exercise: find out from its log and its curve what is wrong with a run, and mend it."""

import torch
import torch.nn.functional as F
from torch import nn

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def train_run(model, data, optimizer, config):
    """... -> list of (loss per token, norm of the gradient), one for each step"""
    log, feed = [], data.forever()
    for step in range(1, config.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = config.rate(step)
        batch = next(feed)
        source, target = batch["source"], batch["target"]  # (B, S), (B, T), 0 is padding
        reads, answers = target[:, :-1], target[:, 1:]
        mask = (source != 0)[:, None, None]  # (B, 1, 1, S)
        scores = model(source, reads, source_mask=mask)  # (B, T, V)
        costs = F.cross_entropy(scores.transpose(1, 2), answers, reduction="none")
        real = answers != 0
        loss = costs[real].sum() / real.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        log.append((loss.item(), norm.item()))
    return log


def _broken():
    def train_run(model, data, optimizer, config):
        """... -> list of (loss per token, norm of the gradient), one for each step"""
        log, feed = [], data.forever()
        for step in range(1, config.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = config.rate(step)
            batch = next(feed)
            source, target = batch["source"], batch["target"]  # (B, S), (B, T), 0 is padding
            reads, answers = target[:, :-1], target[:, 1:]
            mask = (source == 0)[:, None, None]  # (B, 1, 1, S)
            scores = model(source, reads, source_mask=mask)  # (B, T, V)
            costs = F.cross_entropy(scores.transpose(1, 2), answers, reduction="none")
            real = answers != 0
            loss = costs[real].sum() / real.sum()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            log.append((loss.item(), norm.item()))
        return log

    return train_run


def _model(
    reads_source="real",
    clear="before",
    shift=True,
    counted="real",
    rate="step",
    clip="asked",
    shown="mean",
    batch="next",
):
    """The run whose settings are the faults."""

    def run(model, data, optimizer, config):
        log, feed = [], data.forever()
        first = next(feed) if batch == "first" else None
        for step in range(1, config.steps + 1):
            asked = {"step": step, "first": 1}[rate]
            if rate != "never":
                for group in optimizer.param_groups:
                    group["lr"] = config.rate(asked)
            one = first if first is not None else next(feed)
            source, target = one["source"], one["target"]
            reads, answers = (target[:, :-1], target[:, 1:]) if shift else (target[:, 1:], target[:, 1:])
            mask = {"real": source != 0, "padding": source == 0, "all": torch.ones_like(source, dtype=torch.bool),
                    "none": torch.zeros_like(source, dtype=torch.bool)}[reads_source]  # fmt: skip
            scores = model(source, reads, source_mask=mask[:, None, None])
            costs = F.cross_entropy(scores.transpose(1, 2), answers, reduction="none")
            real = torch.ones_like(answers, dtype=torch.bool) if counted == "all" else answers != 0
            loss = costs[real].sum() / (1 if shown == "sum" else real.sum())
            if clear == "before":
                optimizer.zero_grad()
            loss.backward()
            if clear == "between":
                optimizer.zero_grad(set_to_none=False)
            limit = config.clip if clip == "asked" else 1e9
            norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            log.append((loss.item(), norm.item()))
        return log

    return run


def _cleared_afterwards(model, data, optimizer, config):
    log = []
    for step, batch in zip(range(1, config.steps + 1), data.forever(), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = config.rate(step)
        source, target = batch["source"], batch["target"]
        scores = model(source, target[:, :-1], source_mask=source.ne(0)[:, None, None, :])
        loss = F.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        optimizer.zero_grad()
        log.append((loss.item(), norm.item()))
    return log


def _with_grad(model, data, optimizer, config):
    log, feed = [], data.forever()
    weights = list(model.parameters())
    for step in range(1, config.steps + 1):
        batch = next(feed)
        answers = batch["target"][:, 1:]
        hidden = batch["source"] == 0
        scores = model(batch["source"], batch["target"][:, :-1], source_mask=~hidden[:, None, None])
        chances = scores.log_softmax(-1).gather(-1, answers[..., None])[..., 0]
        loss = -chances[answers != 0].mean()
        for p, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            p.grad = gradient
        norm = nn.utils.clip_grad_norm_(weights, config.clip)
        for group in optimizer.param_groups:
            group["lr"] = config.rate(step)
        optimizer.step()
        log.append((float(loss.detach()), float(norm)))
    return log


def _with_the_mask_of_the_course(model, data, optimizer, config):
    from course_lib.masks import padding_mask

    log, feed = [], data.forever()
    for step in range(1, config.steps + 1):
        batch = next(feed)
        source, target = batch["source"], batch["target"]
        scores = model(source, target[:, :-1], source_mask=padding_mask(source, 0))
        real = (target[:, 1:] != 0).float()
        costs = F.cross_entropy(scores.transpose(1, 2), target[:, 1:], reduction="none")
        loss = (costs * real).sum() / real.sum()
        model.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        for group in optimizer.param_groups:
            group["lr"] = config.rate(step)
        optimizer.step()
        log.append((loss.item(), norm.item()))
    return log


class _Net(nn.Module):
    """Scores (B, T, V): the vector of the token that is read, and the mean of the source vectors that may be read."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table.clone())

    def forward(self, source, reads, source_mask):
        seen = source_mask[:, 0, 0, :, None].to(self.table.dtype)  # (B, S, 1)
        read = (self.table[source] * seen).sum(1) / seen.sum(1).clamp(min=1)  # (B, D)
        return (self.table[reads] + 2 * read[:, None]) @ self.table.T


class _Data:
    """Batches, again and again."""

    def __init__(self, batches):
        self.batches = batches

    def forever(self):
        while True:
            for source, target in self.batches:
                yield {"source": source, "target": target}


class _Config:
    """The settings that the run reads, named like those of `TrainingConfig`."""

    def __init__(self, steps, clip):
        self.steps, self.clip = steps, clip

    def rate(self, step):
        return 0.4 / step


def _run(train_run, table, batches, steps, clip):
    """The log, and the weights at the end."""
    model = _Net(table)
    log = train_run(model, _Data(batches), torch.optim.SGD(model.parameters(), lr=0.1), _Config(steps, clip))
    if isinstance(log, tuple | list):
        log = [tuple(map(float, one)) if isinstance(one, tuple | list) else one for one in log]
    return {"log": log, "weights": model.table.detach()}


def _rows(*rows):
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


@maker
def _case(*batches, steps, clip=100.0, V=7, D=3, seed):
    """Each batch is (source rows, target rows)."""
    made = [(_rows(*sources), _rows(*targets)) for sources, targets in batches]
    return normal(V, D, seed=seed, grad=False), made, steps, clip


FIRST = [[3, 4, 2], [5, 2]], [[1, 4, 3, 2], [1, 6, 2]]
SECOND = [[6, 2], [4, 5, 3, 2]], [[1, 5, 2], [1, 3, 4, 2]]
PLAIN = [[3, 4, 2], [5, 6, 2]], [[1, 4, 3, 2], [1, 6, 5, 2]]  # without padding


def _sample(draw):
    V, D = draw.integer(4, 8), draw.integer(2, 4)
    batches = []
    for _ in range(draw.integer(1, 3)):
        B, S, T = draw.integer(1, 3), draw.integer(2, 4), draw.integer(3, 5)
        source, target = draw.integers(B, S, low=1, high=V - 1), draw.integers(B, T, low=1, high=V - 1)
        for row in range(1, B):
            source[row, draw.integer(1, S) :] = 0
            target[row, draw.integer(2, T) :] = 0
        batches.append((source, target))
    return draw.normal(V, D, grad=False, scale=0.5), batches, draw.integer(1, 4), draw.choice([0.5, 100.0])


def _the_source_arrives(run) -> str | None:
    table, _, _, _ = _case(PLAIN, steps=1, seed=71)()
    one, other = _rows([3, 4, 2]), _rows([5, 6, 2])
    target = _rows([1, 4, 3, 2])
    losses = [run(table, [(source, target)], 1, 100.0)["log"][0][0] for source in (one, other)]
    if abs(losses[0] - losses[1]) > 1e-6:
        return None
    return f"With another source, the loss of the first step is the same, {losses[0]:.4f}."


def _steps_do_not_pile_up(run) -> str | None:
    table, batches, _, _ = _case(PLAIN, steps=1, seed=75)()
    alone = run(table, batches, 1, 100.0)
    again = run(alone["weights"], batches, 1, 100.0)
    both = run(table, batches, 2, 100.0)
    found, right = both["log"][1][1], again["log"][0][1]
    if abs(found - right) < 1e-3 * right:
        return None
    return f"The gradient of the second step has the norm {found:.3f}; taken alone, from the same weights, {right:.3f}."


EXERCISE = Exercise(
    title="Diagnose this run",
    kind="debug",
    what="""`train_run` trains the small translator; the curve and the log above are what came out. It does not crash
or warn. Find **both** causes, and mend them; the rest of the function is in order. It must return the log in the same
form, one (loss per token, norm of the gradient) for each step. Leave the batches as they are.

Read the log before the code: what does the loss tell you, and what the norm?""",
    why="Nobody tells you that a run is broken, or where. The curve and the log are what you have.",
    difficulty=4,
    minutes=10,
    reference=train_run,
    given=_broken(),
    model=_model,
    misconceptions=misconceptions("""
mask-inverted (reads_source="padding"): lets the model read the padding of the source and hides its tokens
    What would the loss be if every source were replaced by another one?
mask-all (reads_source="all"): lets the model read the padding of the source
    What does a longer batch change for a short sentence?
mask-none (reads_source="none"): hides the whole source
    What would the loss be if every source were replaced by another one?
gradients-never-cleared (clear="never"): adds the gradient of each step to those of the steps before
    Why does the norm of this run hardly ever fall below the limit of clipping?
gradients-cleared-too-early (clear="between"): clears the gradient before it is used
    How far do your weights move?
not-shifted (shift=False): lets the decoder read the answer
    At position 0, what does the decoder read, and what must it answer?
padding-counted (counted="all"): counts the padding of the target in the loss
    How does your loss change when the batch gets more padding?
rate-never-set (rate="never"): never sets the rate
    At which rate does your second step run?
rate-stands-still (rate="first"): gives every step the rate of the first one
    At which rate does your second step run?
never-clips (clip="never"): does not clip
    What does the limit change in your run?
loss-is-a-sum (shown="sum"): sends back the sum of the costs, and not the cost per token
    How does your gradient grow with the number of tokens?
one-batch-for-ever (batch="first"): trains on the first batch in every step
    How many different batches does your run see?
"""),
    cases=[
        Case("one step, no padding", _case(PLAIN, steps=1, seed=1)),
        Case("one step, with padding", _case(FIRST, steps=1, seed=11)),
        Case("two steps, no padding", _case(PLAIN, PLAIN[::-1], steps=2, seed=21)),
        Case("three steps, with padding", _case(FIRST, SECOND, steps=3, seed=31)),
        Case("three steps, clip 0.5", _case(FIRST, PLAIN, SECOND, steps=3, clip=0.5, seed=41)),
    ],
    properties=[
        Property("The source reaches the loss.", _the_source_arrives),
        Property("The gradient of a step does not depend on the steps before, but through the weights.",
                 _steps_do_not_pile_up),
    ],
    alternatives=[
        Alternative("clearing afterwards, with ignore_index", _cleared_afterwards),
        Alternative("with autograd.grad, which does not add up", _with_grad),
        Alternative("with the course's own mask", _with_the_mask_of_the_course),
    ],
    hints=(
        "The loss stops in the middle, where a model ends that knows English numbers and no German: what is missing?",
        "Two questions. What does True mean in a mask? And look at the norm: it lies above the limit of 1 to the end, "
        "while the loss hardly moves. What does `backward` do with the gradient that is there already?",
        """batch = next(feed)
source, target = batch["source"], batch["target"]
...
mask = ____  # True: may be read
...
# and one line is missing between two steps""",
    ),
    sample=_sample,
    run=_run,
    gradients=False,
)  # fmt: skip
