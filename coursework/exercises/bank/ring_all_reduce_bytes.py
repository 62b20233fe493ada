"""Question: what each process sends when gradients are summed in a ring."""

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Send the parts around a ring, and count what process 0 sends."""
    ranks, parts = 4, [31_109_952] * 4  # numbers in each part of 124,439,808
    known = [[{rank} for _ in parts] for rank in range(ranks)]  # whose gradients each part already contains
    sent = 0
    for step in range(2 * (ranks - 1)):
        moves = []
        for rank in range(ranks):
            part = (rank - step) % ranks if step < ranks - 1 else (rank + 1 - (step - ranks + 1)) % ranks
            moves.append((rank, part, set(known[rank][part])))
        for rank, part, content in moves:
            known[(rank + 1) % ranks][part] |= content
            sent += 4 * parts[part] if rank == 0 else 0
    if any(len(content) < ranks for row in known for content in row):
        raise RuntimeError("a process does not know the sum of all")
    return sent


EXERCISE = Question(
    title="Around the ring",
    kind="measure",
    what="""Four processes train GPT-2 with data parallelism. In every training step each process computes
124,439,808 gradients in float32, and all need the sum. Each splits its gradients into four parts, and the processes
form a ring: in one step of the ring every process sends one part to the next process and receives one from the
previous. First the parts travel until each process holds one part summed over all four. Then the sums travel until
each process holds all four. Play it through, on paper or in a few lines of code: how many bytes does one process
send?""",
    why="""The number hardly grows with the processes, so more of them can share the work. Divided by the bandwidth
it is the time that sending takes, and most of it should pass while the backward pass still computes.""",
    difficulty=3,
    minutes=10,
    right=746_638_848,
    formula="""
processes = 4
gradients = 124439808
bytes_a_number = 4
rounds = 2
rounds * (processes - 1) * (gradients / processes) * bytes_a_number
""",
    compute=_compute,
    form="a number of bytes",
    wrong=[
        WrongAnswer(
            497_759_232, "all gradients sent once, or four steps of a quarter", "How many steps does the ring take?"
        ),
        WrongAnswer(995_518_464, "all gradients sent twice, or eight steps", "Must a part go on when everyone has it?"),
        WrongAnswer(373_319_424, "what the first half of the way takes", "Who holds the sums after the first half?"),
        WrongAnswer(
            1_493_277_696,
            "what sent and received bytes make together, and also what giving all to each of the others takes",
            "How large is a part, and how often does one process send one?",
        ),
        WrongAnswer(186_659_712, "a count of numbers, not bytes", "How many bytes does a float32 number take?"),
        WrongAnswer(
            2_986_555_392,
            "what all four send together, and also what one sends that gives all its gradients in each step",
            "How many bytes does one process send in one step?",
        ),
        WrongAnswer(
            124_439_808, "the number of gradients, and the bytes of one step", "How many steps does the ring take?"
        ),
    ],
    hints=(
        "How many steps does a part need until it has met all four processes?",
        "Three steps to sum and three to spread; in each a process sends a quarter of its gradients.",
        "part = 124_439_808 * 4 // 4  # bytes\nsent = ____ * part",
    ),
    explanation="""Three steps to sum, three to spread, a quarter of 497,759,232 bytes in each: 746,638,848, that is
2 · (4 − 1) / 4 of the gradients. With a thousand processes it would be 2 · 999 / 1000 of them: at most twice.""",
)
