"""Exercise: repair a training loop that forgets, between two calls, what it had learned about its own motion."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal


def resume_state(state, data, updates):
    """dict, (N, D), int -> dict: the state after so many more updates"""
    weight, momentum = state["weight"], state["momentum"]
    step, position = state["step"], state["position"]
    for _ in range(updates):
        example = data[position]  # (D,)
        position = (position + 1) % len(data)
        step += 1
        gradient = (weight @ example - 1) * example  # of (weight @ example - 1)^2 / 2
        momentum = 0.5 * momentum + gradient
        weight = weight - 0.125 / math.sqrt(step) * momentum
    return {"weight": weight, "momentum": momentum, "step": step, "position": position}


def _forgets():
    def resume_state(state, data, updates):
        """dict, (N, D), int -> dict: the state after so many more updates"""
        weight, momentum = state["weight"], torch.zeros_like(state["weight"])
        position = state["position"]
        for step in range(1, updates + 1):
            example = data[position]  # (D,)
            position = (position + 1) % len(data)
            gradient = (weight @ example - 1) * example  # of (weight @ example - 1)^2 / 2
            momentum = 0.5 * momentum + gradient
            weight = weight - 0.125 / math.sqrt(step) * momentum
        steps = state["step"] + updates
        return {"weight": weight, "momentum": momentum, "step": steps, "position": position}

    return resume_state


def _model(
    momentum="kept",
    schedule="goes on",
    feed="goes on",
    rate="new",
    wrap=True,
    counted=True,
    keep_weight=True,
    handed="new",
):
    """The loop whose settings are the misconceptions."""

    def resume(state, data, updates):
        weight = state["weight"] if keep_weight else torch.zeros_like(state["weight"])
        moved = state["momentum"] if momentum == "kept" else torch.zeros_like(state["momentum"])
        step, position = state["step"], state["position"]
        position = {"goes on": position, "starts again": 0, "repeats": position - 1, "by step": step,
                    "by step, counted": position}[feed]  # fmt: skip
        first = step
        for number in range(1, updates + 1):
            index = {"stuck": min(position, len(data) - 1), "one-late": position}.get(wrap, position % len(data))
            example = data[step % len(data) if feed == "by step, counted" else index]
            position = index + 1
            if wrap == "one-late":
                position = 0 if position > len(data) else position
            elif wrap != "stuck":
                position %= len(data)
            step += 1
            gradient = (weight @ example - 1) * example
            moved = 0.5 * moved + gradient
            used = {"goes on": step, "starts again": number, "late": step + 1, "early": max(1, step - 1)}[schedule]
            weight = weight - 0.125 / math.sqrt(used) * moved
        return {
            "weight": weight,
            "momentum": state["momentum"] if handed == "old" else moved,
            "step": updates if counted == "own" else step if counted else first,
            "position": position,
        }

    return resume


def _one_update_at_a_time(state, data, updates):
    if not updates:
        return dict(state)
    example = data[state["position"]]
    step = state["step"] + 1
    momentum = state["momentum"] / 2 + (state["weight"] @ example - 1) * example
    new = {
        "weight": state["weight"] - momentum / (8 * step**0.5),
        "momentum": momentum,
        "step": step,
        "position": (state["position"] + 1) % len(data),
    }
    return _one_update_at_a_time(new, data, updates - 1)


def _with_counters_worked_out(state, data, updates):
    new = dict(state)
    for k in range(updates):
        example = data[(state["position"] + k) % len(data)]
        error = (new["weight"] * example).sum() - 1
        new["momentum"] = new["momentum"] * 0.5 + error * example
        new["weight"] = new["weight"] - 0.125 * (state["step"] + k + 1) ** -0.5 * new["momentum"]
    new["step"] = state["step"] + updates
    new["position"] = (state["position"] + updates) % len(data)
    return new


def _with_torch(state, data, updates):
    weight = state["weight"].detach().clone().requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    optimizer.state[weight]["momentum_buffer"] = state["momentum"].detach().clone()
    step, position = state["step"], state["position"]
    for _ in range(updates):
        step += 1
        optimizer.param_groups[0]["lr"] = 0.125 / math.sqrt(step)
        weight.grad = (weight.detach() @ data[position] - 1) * data[position]
        optimizer.step()
        position = (position + 1) % len(data)
    momentum = optimizer.state[weight]["momentum_buffer"]
    return {"weight": weight.detach(), "momentum": momentum, "step": step, "position": position}


def _state(D, seed, step, position, dtype=torch.float32):
    weight = normal(D, seed=seed, grad=False, dtype=dtype)
    momentum = normal(D, seed=seed + 1, grad=False, dtype=dtype)
    return {"weight": weight, "momentum": momentum, "step": step, "position": position}


def _case(N, D, updates, *, step, position, seed, dtype=torch.float32):
    return lambda: (
        _state(D, seed, step, position, dtype),
        normal(N, D, seed=seed + 2, grad=False, dtype=dtype, scale=0.5),
        updates,
    )


def _sample(draw):
    N, D = draw.integer(1, 6), draw.integer(1, 4)
    dtype = draw.dtype()
    state = {
        "weight": draw.normal(D, grad=False, dtype=dtype),
        "momentum": draw.normal(D, grad=False, dtype=dtype),
        "step": draw.integer(0, 30),
        "position": draw.integer(0, N - 1),
    }
    return state, draw.normal(N, D, grad=False, dtype=dtype, scale=0.25), draw.integer(0, 7)


def _two_calls_are_one(resume) -> str | None:
    state, data, _ = _case(5, 3, 0, step=0, position=0, seed=81)()
    state["momentum"] = torch.zeros(3)
    whole = resume(state, data, 7)
    parts = resume(resume(state, data, 4), data, 3)
    for key in ("weight", "momentum", "step", "position"):
        if not torch.allclose(torch.as_tensor(whole[key]).double(), torch.as_tensor(parts[key]).double(), atol=1e-5):
            return f"7 updates and 4 + 3 updates end with different values of {key!r}."
    return None


def _nothing_is_nothing(resume) -> str | None:
    state, data, _ = _case(5, 3, 0, step=6, position=2, seed=85)()
    after = resume(state, data, 0)
    for key in state:
        if not torch.equal(torch.as_tensor(after[key]), torch.as_tensor(state[key])):
            return f"After no update at all, {key!r} has changed."
    return None


EXERCISE = Exercise(
    title="Go on as if nothing had happened",
    kind="debug",
    what="""`resume_state(state, data, updates)` trains a linear model by stochastic gradient descent with momentum,
one example an update, at a rate that falls with the root of the step (counted from 1 over the whole run;
`state["step"]` says how many updates are done). The state holds `weight`, `momentum`, `step` and `position`, at the
start as well. `state["position"]` is the number of the next example; after the last comes the first. Called once from
the start it is right. Called again with the state that it returned, it does not go on where it was. Repair it: 4
updates and then 3 must end exactly where 7 end. The given state must not change.""",
    why="A checkpoint that holds only the weights resumes another run than the one that was interrupted.",
    difficulty=2,
    minutes=8,
    reference=resume_state,
    given=_forgets(),
    model=_model,
    misconceptions=misconceptions("""
momentum-lost (momentum="lost"): begins with a momentum of zero
    What does the optimizer remember of earlier gradients, and where is it after your first line?
schedule-restarts (schedule="starts again"): runs through the learning rates from the first one again
    With state['step'] at 100, at which rate does your next update run?
schedule-late (schedule="late"): gives each update the rate of the next one
    At which rate does the very first update of a run go?
data-restarts (feed="starts again"): shows the data from the beginning again
    Which example comes next after three were seen?
example-repeated (feed="repeats"): shows the last example again
    Does state['position'] name the example that was seen last, or the one that comes next?
position-from-step (feed="by step"): works out the position in the data from the step and ignores the one that was saved
    What if an earlier run had skipped an example: which one comes next?
example-from-step (feed="by step, counted"): takes the example by the number of the step, and counts the position
        without reading it
    What if an earlier run had skipped an example: which one comes next?
stuck-at-the-end (wrap="stuck"): stays at the last example of the data
    Which example follows the last one?
steps-not-counted (counted=False): returns the step that it was given
    After two calls with 4 updates each, what should state['step'] be?
weights-restart (keep_weight=False): begins with weights of zero
    What has the run learned so far, and where does your loop begin?
schedule-early (schedule="early"): takes the rate of the update before
    With which number is the first update of the whole run counted?
own-steps-returned (counted="own"): returns the number of updates of this call as the step
    How many updates has the whole run behind it after the second call?
old-momentum-returned (handed="old"): hands on the momentum that it was given
    Which momentum does the next call need?
wraps-one-late (wrap="one-late"): goes back to the first example only after a number that no example has
    What is the number of the last example?
"""),
    cases=[
        Case("one update from the start", lambda: (
            {"weight": torch.tensor([0.5, -1.0]), "momentum": torch.zeros(2), "step": 0, "position": 0},
            torch.tensor([[1.0, 2.0], [0.5, 0.5], [2.0, -1.0]]), 1)),
        Case("one update, with momentum", _case(3, 2, 1, step=1, position=0, seed=11)),
        Case("one update at step 8, example 2", _case(5, 3, 1, step=8, position=2, seed=21)),
        Case("no update", _case(4, 3, 0, step=8, position=2, seed=31)),
        Case("past the end of the data", _case(3, 4, 5, step=2, position=1, seed=41)),
        Case("from the last example", _case(5, 2, 2, step=30, position=4, seed=51)),
        Case("float64", _case(5, 3, 7, step=3, position=1, seed=61, dtype=torch.float64)),
    ],
    properties=[
        Property("Two calls end where one ends.", _two_calls_are_one),
        Property("No update changes nothing.", _nothing_is_nothing),
    ],
    alternatives=[
        Alternative("by recursion, one update at a time", _one_update_at_a_time),
        Alternative("with step and position worked out", _with_counters_worked_out),
        Alternative("with torch's optimizer, whose buffer is put back", _with_torch),
    ],
    hints=(
        "Which of the four entries of the state does the broken function read, and which does it only write?",
        "Everything that the next update depends on must come from the state: what moves, how fast, and what is seen.",
        """weight, momentum = state["weight"], ____
step, position = ...
for _ in range(updates):
    example = data[position]
    ...""",
    ),
    sample=_sample,
    tries=("float64", "zeros"),
    gradients=False,
    equivalent_mutants={"weight @ example -> example @ weight": "the product of two vectors, in either order"},
)  # fmt: skip
