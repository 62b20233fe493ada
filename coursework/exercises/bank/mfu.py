"""Exercise: the share of a machine's peak that a training run uses."""

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def mfu(parameters, layers, width, length, tokens_per_second, devices, peak):
    """numbers -> float: model FLOPs utilisation of a training run"""
    a_token = 6 * parameters + 12 * layers * width * length
    return a_token * tokens_per_second / (devices * peak)


def _model(weights=6, products=12, times=1, per="devices", sparse=1, percent=1, with_length=True, power=1):
    """A utilisation whose settings are the misconceptions."""

    def share(parameters, layers, width, length, tokens_per_second, devices, peak):
        a_token = (
            weights * parameters
            + products * layers * width * {True: length, False: 1, "squared": length**2}[with_length]
        )
        a_token *= times
        available = (
            {"devices": devices, "one": 1, "sequence": devices * length, "divides": 1 / devices}[per] * sparse * peak
        )
        return percent * (a_token * tokens_per_second / available) ** power

    return share


def _seconds_of_a_token(parameters, layers, width, length, tokens_per_second, devices, peak):
    at_peak = (6 * parameters + 12 * layers * width * length) / peak / devices  # seconds, were nothing lost
    return at_peak / (1 / tokens_per_second)


def _one_device(parameters, layers, width, length, tokens_per_second, devices, peak):
    rate = tokens_per_second / devices
    return rate * 6 * parameters / peak + rate * 12 * layers * width * length / peak


def _with_course(parameters, layers, width, length, tokens_per_second, devices, peak):
    from course_lib.scaling import mfu as share
    from course_lib.scaling import six_n_d

    flops = six_n_d(parameters, 1) + 12 * layers * width * length  # of one token
    return share(flops, 1 / tokens_per_second, devices * peak)


def _sample(draw):
    layers, width, length = draw.integer(1, 48), draw.integer(1, 2000), draw.integer(1, 9000)
    parameters = draw.integer(1_000_000, 2_000_000_000)
    return (
        parameters,
        layers,
        width,
        length,
        draw.integer(1, 10**4),
        draw.integer(1, 64),
        draw.integer(300, 1000) * 1e12,
    )


def _devices_share(mfu) -> str | None:
    one, four = mfu(10**9, 11, 700, 500, 3000.0, 1, 1e14), mfu(10**9, 11, 700, 500, 12000.0, 4, 1e14)
    if abs(one - four) < 1e-9 * abs(one):
        return None
    return f"3000 tokens a second on 1 device give {one:.4g}, 12000 on 4 devices {four:.4g}."


def _never_above_one(mfu) -> str | None:
    share = mfu(10**9, 10, 1000, 1000, 1e14 / (6e9 + 12e7), 1, 1e14)
    return None if share <= 1 + 1e-9 else f"A device that works at exactly its peak gives {share:.4g}."


EXERCISE = Exercise(
    title="The share of the peak",
    what="""Write `mfu(parameters, layers, width, length, tokens_per_second, devices, peak)`: model FLOPs utilisation,
the operations that training the model needs in a second divided by those that the devices could do. A token needs
6 · `parameters` operations for the weights, forward and backward, and 12 · `layers` · `width` · `length` for the scores
and the mixing of attention, all pairs counted. `tokens_per_second` is that of all `devices` together, `peak` the
operations per second of one of them. `parameters` are those that multiply: tables that are only looked up are
left out. The formula counts each operation once, even if a program computes some of them again to save memory.
Return a share between 0 and 1, not per cent.""",
    why="""It compares runs on different machines and of different models, provided all peaks are for the same kind of
number. Its parts are often taken wrong: repeated work is counted, or devices are forgotten.""",
    difficulty=2,
    minutes=5,
    reference=mfu,
    model=_model,
    misconceptions=misconceptions("""
attention-left-out (products=0): leaves out the products of attention
    Does your answer depend on the length?
causal-half (products=6): counts half of the pairs of attention
    Which pairs should be counted here?
attention-forward-only (products=4): counts the products of attention in the forward pass alone
    Do the scores have a backward pass?
weights-forward-only (weights=2): counts the weights in the forward pass alone
    How many operations does one weight take part in, for one token of training?
recomputed (times=4 / 3): counts a second forward pass as work done
    Does a model learn more from a forward pass that is done twice?
one-device (per="one"): makes the share as many times too large as there are devices
    What could all devices together do in a second?
sequences (per="sequence"): takes the rate for one of sequences, or divides by the length a second time
    Is your count of operations one for a token, or one for a sequence?
sparse-peak (sparse=2): doubles the peak, as advertisements for sparse matrices do
    What does your function return for a device that works at exactly the given peak?
percent (percent=100): returns per cent
    Which number stands for a device that works at exactly its peak?
length-left-out (with_length=False): lets each token attend to a single other
    How many keys does a token meet?
inverted (power=-1): divides the peak by what was used
    Does your number rise when the run becomes faster?
length-squared (with_length="squared"): counts the operations of attention with the square of the length for one token
    With how many keys is the query of one token compared?
devices-multiplied (per="divides"): multiplies by the number of devices
    Whose tokens are counted in `tokens_per_second`, and whose operations in `peak`?
"""),
    cases=[
        Case("a small model on one device", lambda: (1000, 2, 5, 7, 11.0, 1, 1e5)),
        Case("the same on three devices", lambda: (1000, 2, 5, 7, 11.0, 3, 1e5)),
        Case("a long context", lambda: (1000, 3, 11, 501, 13.0, 2, 1e7)),
        Case("GPT-2 on one device", lambda: (124_439_808, 12, 768, 1024, 180_000.0, 1, 312e12)),
        Case("8 billion parameters on 64 devices", lambda: (8_030_261_248, 32, 4096, 8192, 500_000.0, 64, 989.4e12)),
        Case("the same, short context", lambda: (8_030_261_248, 32, 4096, 512, 600_000.0, 64, 989.4e12)),
    ],
    properties=[
        Property("Four devices with four times the tokens are used as well as one.", _devices_share),
        Property("A device that works at its peak has a utilisation of 1.", _never_above_one),
    ],
    alternatives=[
        Alternative("from the seconds of a token", _seconds_of_a_token),
        Alternative("device by device", _one_device),
        Alternative("the course's own function", _with_course),
    ],
    gradients=False,
    hints=(
        "How many operations does the model need for one token, and how many could be done while it is trained?",
        "Both sides are operations per second: one token times the rate, and all devices at their peak.",
        """a_token = 6 * parameters + ____
return a_token * tokens_per_second / (devices * peak)""",
    ),
    sample=_sample,
)
