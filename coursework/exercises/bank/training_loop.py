"""Exercise: the loop of a training, judged by what each step and each look at held-out data did, and by resuming."""

import contextlib

import torch

from coursework.exercises import watched
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def training_loop(model, optimizer, step_of, loss_of, data, held_out, config, path, device):
    """... -> list of (step, held-out loss per token), one for each look"""
    model.to(device)
    rough = config.precision == "bfloat16"

    def loss_here(model, batch):  # what training and evaluation call: on the device, under autocast
        batch = {name: ids.to(device) for name, ids in batch.items()}
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=rough):
            return loss_of(model, batch)

    done, history = 0, []
    if path.exists():
        saved = torch.load(path, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        data.load_state_dict(saved["data"])
        torch.set_rng_state(saved["random"])
        done, history = saved["done"], saved["history"]
    feed = data.forever()
    for step in range(done + 1, config.steps + 1):
        model.train()
        parts = [next(feed) for _ in range(config.accumulation)]
        step_of(model, parts, optimizer, config.rate(step), config.clip, loss_here)
        if step % config.evaluate_every == 0:
            model.eval()
            with torch.no_grad():
                sums = [loss_here(model, batch) for batch in held_out]
            loss = sum(float(total) for total, _ in sums) / sum(int(count) for _, count in sums)
            history.append((step, loss))
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": data.state_dict(),
                     "random": torch.get_rng_state(), "done": step, "history": history}  # fmt: skip
            torch.save(saved, path)
    return history


def _model(
    evaluated="eval", back=True, mean="tokens", gradient=False, cast="loss", kind="own", moved="both",
    saves=("model", "optimizer", "data", "random", "step", "history"), rate="step", parts="config", looks="every",
):  # fmt: skip
    """The loop whose settings are the misconceptions."""

    def loop(model, optimizer, step_of, loss_of, data, held_out, config, path, device):
        if moved in ("both", "model"):
            model.to(device)
        rough = config.precision == "bfloat16" or cast == "always"

        def under_autocast(wanted):
            name = torch.device(device).type if kind == "own" else kind
            return torch.autocast(name, torch.bfloat16, enabled=rough and wanted)

        def loss_here(model, batch):
            if moved in ("both", "batch"):
                batch = {name: ids.to(device) for name, ids in batch.items()}
            with under_autocast(cast in ("loss", "always") or (cast == "training" and model.training)):
                return loss_of(model, batch)

        done, history = 0, []
        if path.exists() and saves:
            saved = torch.load(path, map_location="cpu")
            if "model" in saves:
                model.load_state_dict(saved["model"])
            if "optimizer" in saves:
                optimizer.load_state_dict(saved["optimizer"])
            if "data" in saves:
                data.load_state_dict(saved["data"])
            if "random" in saves:
                torch.set_rng_state(saved["random"])
            if "history" in saves:
                history = saved["history"]
            done = saved["done"] if "step" in saves else 0
            done += "step again" in saves
        feed = data.forever()
        model.train()
        for step in range(done + 1, config.steps + 1):
            if back:
                model.train()
            some = [next(feed) for _ in range(config.accumulation if parts == "config" else 1)]
            asked = {"step": step, "from zero": max(1, step - 1), "of this call": step - done}[rate]
            with under_autocast(cast == "step"):
                step_of(model, some, optimizer, config.rate(asked), config.clip, loss_here)
            every = config.evaluate_every
            if {"every": step % every == 0, "first": (step - 1) % every == 0, "always": True}[looks]:
                if evaluated == "eval":
                    model.eval()
                with torch.set_grad_enabled(gradient):
                    sums = [(float(total), int(count)) for total, count in (loss_here(model, b) for b in held_out)]
                if mean == "first":
                    sums = sums[:1]
                loss = sum(total for total, _ in sums) / sum(count for _, count in sums)
                if mean == "means":
                    loss = sum(total / count for total, count in sums) / len(sums)
                elif mean == "sum":
                    loss = sum(total for total, _ in sums)
                history.append((step, loss))
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": data.state_dict(),
                         "random": torch.get_rng_state(), "done": step, "history": history}  # fmt: skip
                if saves:
                    torch.save(state, path)
        return history

    return loop


def _with_inner_functions(model, optimizer, step_of, loss_of, data, held_out, config, path, device):
    model = model.to(device)

    def on_device(batch):
        return {name: ids.to(device) for name, ids in batch.items()}

    def rough_loss(model, batch):
        if config.precision != "bfloat16":
            return loss_of(model, batch)
        with torch.autocast(device_type=torch.device(device).type, dtype=torch.bfloat16):
            return loss_of(model, batch)

    @torch.no_grad()
    def look():
        model.eval()
        total = count = 0
        for batch in held_out:
            loss, tokens = rough_loss(model, on_device(batch))
            total, count = total + loss.item(), count + int(tokens)
        model.train()
        return total / count

    state = {"step": 0, "history": []}
    if path.exists():
        state = torch.load(path, weights_only=False)
        for part, name in ((model, "model"), (optimizer, "optimizer"), (data, "data")):
            part.load_state_dict(state.pop(name))
        torch.set_rng_state(state.pop("random"))
    model.train()
    feed = data.forever()
    while state["step"] < config.steps:
        state["step"] += 1
        parts = [on_device(next(feed)) for _ in range(config.accumulation)]
        step_of(model, parts, optimizer, config.rate(state["step"]), config.clip, rough_loss)
        if not state["step"] % config.evaluate_every:
            state["history"].append((state["step"], look()))
            parts_of = {"model": model, "optimizer": optimizer, "data": data}
            saved = {name: part.state_dict() for name, part in parts_of.items()}
            torch.save(state | saved | {"random": torch.get_rng_state()}, path)
    return state["history"]


def _one_feed_of_steps(model, optimizer, step_of, loss_of, data, held_out, config, path, device):
    model.to(device)
    place = torch.device(device)
    casting = {"device_type": place.type, "dtype": torch.bfloat16, "enabled": config.precision == "bfloat16"}
    done, history = 0, []
    if path.is_file():
        weights, averages, place_in_data, random, done, history = torch.load(path, map_location="cpu")
        model.load_state_dict(weights)
        optimizer.load_state_dict(averages)
        data.load_state_dict(place_in_data)
        torch.random.set_rng_state(random)

    def loss_here(model, batch):
        with torch.autocast(**casting):
            return loss_of(model, {name: ids.to(place) for name, ids in batch.items()})

    model.train()
    feed, parts = data.forever(), []
    step = done
    while step < config.steps:
        parts.append(next(feed))
        if len(parts) < config.accumulation:
            continue
        step += 1
        step_of(model, parts, optimizer, config.rate(step), config.clip, loss_here)
        parts = []
        if step % config.evaluate_every:
            continue
        model.eval()
        with torch.inference_mode():
            found = torch.tensor([[float(part) for part in loss_here(model, batch)] for batch in held_out])
        model.train()
        total, count = found.double().sum(dim=0).tolist()
        history.append((step, total / count))
        kept = [part.state_dict() for part in (model, optimizer, data)]
        torch.save((*kept, torch.get_rng_state(), step, history), path)
    return history


def _through_a_second_file(model, optimizer, step_of, loss_of, data, held_out, config, path, device):
    model.to(device)
    precision = torch.bfloat16 if config.precision == "bfloat16" else None

    def loss_here(model, batch):
        moved = {}
        for name in batch:
            moved[name] = batch[name].to(device)
        around = torch.autocast(torch.device(device).type, precision) if precision else contextlib.nullcontext()
        with around:
            return loss_of(model, moved)

    history = []
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        data.load_state_dict(saved["data"])
        torch.set_rng_state(saved["random"])
        history = [tuple(one) for one in saved["history"]]
    feed = data.forever()
    first = 1 + (history[-1][0] if history else 0)
    for step in range(first, config.steps + 1):
        model.train(True)
        parts = []
        for _ in range(config.accumulation):
            parts.append(next(feed))
        step_of(model, parts, optimizer, config.rate(step), config.clip, loss_here)
        if step % config.evaluate_every == 0:
            model.train(False)
            with torch.no_grad():
                totals, counts = zip(*(loss_here(model, batch) for batch in held_out), strict=True)
            history += [(step, float(sum(totals)) / int(sum(counts)))]
            unfinished = path.with_suffix(".part")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": data.state_dict(),
                        "random": torch.get_rng_state(), "history": history}, unfinished)  # fmt: skip
            unfinished.replace(path)  # an interrupt while writing leaves the old file whole
    return history


@maker
def _case(steps, every, *, accumulation=1, precision="float32", stop=0, device="cpu", seed, counts=(2, 4, 3),
          held=(1, 4), D=3, V=4):  # fmt: skip
    data, held_out = watched.batches(counts, D, V, seed + 1), watched.batches(held, D, V, seed + 50)
    weight = normal(V, D, seed=seed, grad=False)
    return weight, data, held_out, steps, every, accumulation, precision, stop, device


def _sample(draw):
    D, V, every = draw.integer(1, 3), draw.integer(2, 4), draw.integer(1, 2)
    seed = draw.integer(0, 10_000)
    counts = [draw.integer(1, 4) for _ in range(draw.integer(1, 3))]
    held = [draw.integer(1, 4) for _ in range(draw.integer(1, 2))]
    steps = draw.integer(1, 2)
    stop = draw.choice([0, 0, 0, 0, 0, every])
    weight = draw.normal(V, D, grad=False)
    data, held_out = watched.batches(counts, D, V, seed), watched.batches(held, D, V, seed + 50)
    return weight, data, held_out, steps, every, draw.integer(1, 2), draw.choice(["float32", "bfloat16"]), stop, "cpu"


def _resumed_is_straight(loop) -> str | None:
    straight = loop(*_case(5, 2, seed=301)())
    resumed = loop(*_case(5, 2, stop=3, seed=301)())
    if torch.equal(straight["weights afterwards"], resumed["weights afterwards"]):
        return None
    off = float((straight["weights afterwards"] - resumed["weights afterwards"]).abs().max())
    return f"Stopped in its fourth update and resumed, a run of 5 updates ends with weights that are off by {off:.2g}."


EXERCISE = Exercise(
    title="The training loop",
    what="""Write the loop, in two halves.

**First half: train and look.** Move the model to `device`. Then put this function inside yours. It computes the loss on
the device, and under autocast if the settings ask for it:

```python
def loss(model, batch):
    batch = {name: ids.to(device) for name, ids in batch.items()}
    rough = config.precision == "bfloat16"
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=rough):
        return loss_of(model, batch)  # a sum and a count
```

- Steps count from 1 to `config.steps`. Each takes `config.accumulation` batches from `data.forever()` and calls
  `step_of(model, parts, optimizer, config.rate(step), config.clip, loss)` once, with the model in training mode.
- After every `config.evaluate_every` steps, compute the loss per token over all batches of `held_out`: with the same
  `loss`, in evaluation mode, without gradients. Append `(step, loss per token)` to a list, the history.
- Return the history. Leave the batches as they are.

Run the cell. If the check says that your function behaves *like one that saves nothing*, the first half is right.

**Second half: save and resume.**

- After each look, save a dict with `torch.save(saved, path)`: the states of model, optimizer and data, the random
  state, the number of the step, and the history.
- At the start, after the model has moved, see if `path.exists()`. Then `torch.load(path, map_location="cpu")` gives the
  dict back. Restore everything first. Only then call `data.forever()`, and continue with the next step.
- `state_dict()` gives the state of model, optimizer and data, and `load_state_dict` restores it. For the random state
  that dropout draws from, these are `torch.get_rng_state()` and `torch.set_rng_state`.

On a CPU, a resumed run must end as if it had never stopped, **bit for bit**, with the whole history.""",
    why="You can train every model of this course with it, and it is nearly all that you need to leave a training "
    "alone.",
    difficulty=4,
    minutes=50,
    reference=training_loop,
    model=_model,
    misconceptions=misconceptions("""
evaluates-in-training-mode (evaluated="train"): looks at the held-out data with dropout
    What does dropout do to your held-out loss?
stays-in-evaluation-mode (back=False): trains without dropout after the first look at the held-out data
    In which mode is the model at the step after an evaluation?
held-out-mean-of-means (mean="means"): takes the mean of the means of the held-out batches
    One batch has 1 real token, the other 3: with which weight does each token count?
held-out-sum (mean="sum"): notes the sum of the losses of the held-out tokens
    Does your held-out loss change when there are twice as many held-out sentences?
only-the-first-held-out-batch (mean="first"): notes the loss of the first held-out batch alone
    Which held-out batches are in the number that you note?
evaluates-with-gradients (gradient=True): keeps a graph for gradients while it looks at the held-out data
    What does PyTorch keep of each layer, unless you tell it that no gradient will be asked for?
no-autocast (cast="never"): never uses autocast
    What does `config.precision` change in your loop?
autocast-always (cast="always"): uses autocast, whatever `config.precision` says
    What does a run in float32 do differently from one in bfloat16?
autocast-in-training-only (cast="training"): looks at the held-out data without autocast
    Is the number that you note that of the model as it is being trained?
autocast-around-the-step (cast="step"): puts the whole step under autocast, and not the loss
    Which parts of a step are to be computed under autocast: the loss, its gradients, the update?
autocast-of-the-cpu (kind="cpu"): asks for the autocast of the CPU, wherever the model is
    On which device do your matrix products run?
autocast-of-cuda (kind="cuda"): asks for the autocast of CUDA, wherever the model is
    On which device do your matrix products run?
never-resumes (saves=()): saves nothing and begins anew
    After a stop, what does your loop know of the steps that were made?
optimizer-forgotten (saves=("model", "data", "random", "step", "history")): goes on without what the optimizer kept
    What does an optimizer remember of earlier gradients, and where is it after a restart?
weights-forgotten (saves=("optimizer", "data", "random", "step", "history")): goes on with the first weights
    What has the run learned so far, and where is it after a restart?
data-from-the-start (saves=("model", "optimizer", "random", "step", "history")): shows the data from the beginning again
    Which batch comes next after three were seen?
random-state-forgotten (saves=("model", "optimizer", "data", "step", "history")): lets dropout draw other numbers after
        a restart
    Which numbers would dropout have drawn if the run had not been stopped?
steps-counted-anew (saves=("model", "optimizer", "data", "random", "history")): begins again at step 1
    With 100 steps done of 500, how many are left?
a-step-skipped (saves=("model", "optimizer", "data", "random", "step", "history", "step again")): leaves a step out
        after a restart
    The file was written after step 4: which step comes next?
history-forgotten (saves=("model", "optimizer", "data", "random", "step")): returns only what was noted since the
        restart
    What would your curve of the whole run look like after a restart?
rate-of-the-step-before (rate="from zero"): takes the rate of the step before
    With which number does the first step count?
rate-of-this-call (rate="of this call"): counts the steps for the rate from the restart on
    After a restart, does the warm-up come again?
one-batch-for-each-step (parts="one"): takes one batch for each step, whatever `config.accumulation` says
    What does `config.accumulation` change in your loop?
looks-at-every-step (looks="always"): looks at the held-out data after every step
    How much time would 500 looks take?
looks-one-step-late (looks="first"): looks at the held-out data in the first step of every round, and not after the last
    With `evaluate_every=2`, after which steps is the loss to be noted?
"""),
    cases=[
        Case("2 steps, a look at the end", _case(2, 2, seed=1)),
        Case("4 steps, a look after every second", _case(4, 2, seed=11)),
        Case("3 steps of two batches", _case(3, 1, accumulation=2, seed=21)),
        Case("bfloat16", _case(2, 1, precision="bfloat16", seed=31)),
        Case("the device cuda, in bfloat16", _case(2, 2, precision="bfloat16", device="cuda", seed=41)),
        Case("stopped after 2 of 4 steps, and resumed", _case(4, 2, stop=2, seed=51)),
        Case("stopped after 4 of 6 steps of two batches, two after the last file",
             _case(6, 3, accumulation=2, stop=5, seed=61, counts=(2, 4, 3, 5))),
    ],
    properties=[
        Property("A run that was stopped and resumed ends as one that was not, bit for bit.", _resumed_is_straight),
    ],
    alternatives=[
        Alternative("with inner functions, moving each batch as it comes", _with_inner_functions),
        Alternative("collecting parts until there are enough", _one_feed_of_steps),
        Alternative("writing a second file first", _through_a_second_file),
    ],
    hints=(
        "If the power failed now, what would the next step need to know?",
        "Write the plain loop first, then the look at the held-out data, then saving, then resuming; check in between. "
        "Training and evaluation share the function `loss`.",
        """done, history = 0, []
if path.exists():
    ...  # load five things, and how far the run was
feed = data.forever()
for step in range(____, config.steps + 1):
    ...  # training mode, the parts, the step
    if step % config.evaluate_every == 0:
        ...  # evaluation mode, no gradients, sums and counts, the history, the file
return history""",
    ),
    sample=_sample,
    run=watched.run,
    gradients=False,
    equivalent_mutants={
        "torch.load(path, map_location='cpu') -> torch.load(path)": "the check saves tensors of the CPU alone"
    },
)  # fmt: skip
