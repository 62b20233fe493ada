"""Exercise: continuous batching, the loop of a server that fills a slot as soon as it is free."""

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions

END = 0


def serve(engine, requests, budget):
    """an engine, list of (prompt, longest), number of tokens -> list of lists of ids"""
    answers = [[] for _ in requests]
    waiting, running = list(range(len(requests))), {}  # running: slot -> number of its request
    while waiting or running:
        for slot in range(engine.n_slots):
            if slot in running or not waiting:
                continue
            prompt, longest = requests[waiting[0]]
            if len(prompt) + longest > budget:
                break  # nobody overtakes: the next in line waits for memory, and so do all behind it
            budget -= len(prompt) + longest
            running[slot] = waiting.pop(0)
            engine.start(slot, prompt)
        for slot, token in engine.step(list(running)).items():
            number = running[slot]
            prompt, longest = requests[number]
            answers[number].append(token)
            if token == engine.end or len(answers[number]) == longest:
                engine.stop(slot)
                del running[slot]
                budget += len(prompt) + longest
    return answers


class _Engine:
    """Stands for a model with slots. A request's prompt begins with its number; its answer is scripted."""

    end = END

    def __init__(self, n_slots, lengths):
        self.n_slots, self.lengths = n_slots, lengths
        self.held, self.passes = {}, []  # slot -> [number of the request, tokens so far]; who ran in each pass

    def start(self, slot, prompt):
        if slot not in range(self.n_slots):
            raise ValueError(f"start: there is no slot {slot}, the engine has {self.n_slots}")
        if slot in self.held:
            raise ValueError(f"start: slot {slot} still holds a text that was not stopped")
        self.held[slot] = [prompt[0] - 10, 0]

    def step(self, slots):
        if len(self.passes) > 200:
            raise RuntimeError("step: this was the 200th pass, and there is still no end")
        slots = list(slots)
        if not slots:
            raise ValueError("step: no slot was given, so there is nothing to write")
        self.passes.append(sorted(self.held[slot][0] for slot in slots))
        tokens = {}
        for slot in slots:
            number, n = self.held[slot]
            self.held[slot][1] = n + 1
            tokens[slot] = END if n + 1 == self.lengths[number] else 1 + (7 * number + n) % 50
        return tokens

    def stop(self, slot):
        del self.held[slot]


def _run(serve, requests, lengths, n_slots, budget):
    """The answers, which requests ran in each pass, and how many slots are still held at the end."""
    engine = _Engine(n_slots, lengths)
    answers = serve(engine, requests, budget)
    return {"answers": answers, "passes": engine.passes, "held at the end": len(engine.held)}


def _model(
    admit="free", overtake=False, per_step="all", need="whole", limit="met", given_back="whole", stop="both",
    end="kept", order="asked",
):  # fmt: skip
    """A loop whose settings are the misconceptions."""

    def loop(engine, requests, budget):
        answers, finished = [[] for _ in requests], []
        waiting, running = list(range(len(requests))), {}

        def size(number):
            prompt, longest = requests[number]
            return {"whole": len(prompt) + longest, "prompt": len(prompt), "answer": longest, "nothing": 0}[need]

        while waiting or running:
            slots = [slot for slot in range(engine.n_slots) if slot not in running]
            if admit == "empty" and running:
                slots = []
            for slot in slots[:1] if per_step == "one" else slots:
                fits = [n for n in waiting if size(n) < budget or (size(n) == budget and limit == "met")]
                if not fits or (fits[0] != waiting[0] and not overtake):
                    break
                number = fits[0]
                waiting.remove(number)
                running[slot] = number
                budget -= size(number)
                engine.start(slot, requests[number][0])
            for slot, token in engine.step(list(running)).items():
                number = running[slot]
                answers[number].append(token)
                ended = token == engine.end and stop != "longest"
                if ended and end == "dropped":
                    answers[number].pop()
                if ended or (len(answers[number]) == requests[number][1] and stop != "end"):
                    engine.stop(slot)
                    del running[slot]
                    budget += {"whole": size(number), "never": 0}[given_back]
                    finished.append(answers[number])
        return finished if order == "finished" else answers

    return loop


def _with_a_set_of_free_slots(engine, requests, budget):
    line, running, free = list(enumerate(requests))[::-1], {}, set(range(engine.n_slots))
    answers = {}
    while line or running:
        while line and free and len(line[-1][1][0]) + line[-1][1][1] <= budget:
            number, (prompt, longest) = line.pop()
            slot = free.pop()
            budget -= len(prompt) + longest
            running[slot], answers[number] = number, []
            engine.start(slot, prompt)
        for slot, token in engine.step(sorted(running)).items():
            number = running[slot]
            prompt, longest = requests[number]
            answers[number] += [token]
            if token == engine.end or len(answers[number]) >= longest:
                del running[slot]
                free.add(slot)
                budget += len(prompt) + longest
                engine.stop(slot)
    return [answers[number] for number in range(len(requests))]


def _counting_anew(engine, requests, budget):
    """Keeps no sum: what is reserved is added up from those who run."""
    answers, slots, next_one = [[] for _ in requests], [None] * engine.n_slots, 0
    needs = [len(prompt) + longest for prompt, longest in requests]
    while next_one < len(requests) or any(number is not None for number in slots):
        while next_one < len(requests) and None in slots:
            reserved = sum(needs[number] for number in slots if number is not None)
            if reserved + needs[next_one] > budget:
                break
            slot = slots.index(None)
            slots[slot] = next_one
            engine.start(slot, requests[next_one][0])
            next_one += 1
        tokens = engine.step([slot for slot, number in enumerate(slots) if number is not None])
        for slot, token in tokens.items():
            answer = answers[slots[slot]]
            answer.append(token)
            if token == engine.end or len(answer) == requests[slots[slot]][1]:
                engine.stop(slot)
                slots[slot] = None
    return answers


def _with_records(engine, requests, budget):
    jobs = [
        {"prompt": prompt, "left": longest, "needs": len(prompt) + longest, "answer": []}
        for prompt, longest in requests
    ]
    line, at = jobs[:], {}
    while line or at:
        for slot in sorted(set(range(engine.n_slots)) - set(at)):
            if not line or line[0]["needs"] > budget:
                break
            at[slot] = line.pop(0)
            budget -= at[slot]["needs"]
            engine.start(slot, at[slot]["prompt"])
        for slot, token in engine.step(list(at)).items():
            job = at[slot]
            job["answer"].append(token)
            job["left"] -= 1
            if token == engine.end or not job["left"]:
                engine.stop(slot)
                budget += at.pop(slot)["needs"]
    return [job["answer"] for job in jobs]


@maker
def _case(sizes, n_slots, budget):
    """Of each request: length of the prompt, longest answer allowed, length at which the model ends."""
    requests = [([10 + n] + [5] * (prompt - 1), longest) for n, (prompt, longest, _) in enumerate(sizes)]
    return {"requests": requests, "lengths": [length for *_, length in sizes], "n_slots": n_slots, "budget": budget}


def _sample(draw):
    sizes = [(draw.integer(1, 5), draw.integer(1, 6), draw.integer(1, 8)) for _ in range(draw.integer(0, 7))]
    made = _case(sizes, draw.integer(1, 4), draw.integer(11, 30))()
    if len(sizes) > 1 and draw.boolean():
        made["requests"][-1] = made["requests"][0]  # two may ask the same
    return made


def _first_come_first_served(call) -> str | None:
    sizes = [(2, 4, 4), (2, 4, 4), (8, 8, 2), (1, 1, 1)]
    passes = call(**_case(sizes, 3, 20)())["passes"]
    first = [min((t for t, ran in enumerate(passes) if n in ran), default=-1) for n in range(4)]
    if first == sorted(first):
        return None
    return f"Four requests have asked in the order 0 to 3; their first passes are {first}."


def _slots_are_not_left_empty(call) -> str | None:
    passes = call(**_case([(1, 6, 6), (1, 1, 1), (1, 5, 5)], 2, 100)())["passes"]
    if len(passes) == 6:
        return None
    return f"Two slots, answers of 6, 1 and 5 tokens, memory enough: 6 passes would do, yours took {len(passes)}."


EXERCISE = Exercise(
    title="Serve as slots come free",
    what="""Write `serve(engine, requests, budget)`. A request is `(prompt, longest)`: a list of ids, and the most
tokens its answer may have. All of them are waiting, in this order. The engine has `n_slots` slots, numbered from 0:

- `engine.start(slot, prompt)` puts a prompt into a free slot,
- `engine.step(slots)` is one pass of the model; it returns a dict with the next token of each of these slots,
- `engine.stop(slot)` frees a slot.

Before each pass, let in as many requests as there are free slots and memory for, strictly in order: if the next one
does not fit, those behind it wait, too. A running request reserves `len(prompt) + longest` tokens, and together they
reserve at most `budget`; no single one needs more than that. Then step every running slot. An answer ends with the
token `engine.end`, which belongs to it, or at `longest` tokens. Its slot and its memory are free before the next pass.
Return the answers in the order of the requests. Leave `requests` as it is.""",
    why="This is the loop of Orca (Yu et al. 2022). vLLM keeps it, with a thriftier rule for memory.",
    difficulty=4,
    minutes=20,
    reference=serve,
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
waits-for-all (admit="empty"): lets nobody in before every slot is free
    Three of four slots are free and one text is still being written: what do the three do meanwhile?
overtaken (overtake=True): lets a small request pass a large one that does not fit
    If small requests keep coming, when is it the turn of the large one?
one-at-a-time (per_step="one"): lets in at most one request before each pass
    After the first pass, how many of four slots are in use?
prompt-only (need="prompt"): reserves memory for the prompt and none for the answer
    Where do the keys and values of the written tokens go?
answer-only (need="answer"): reserves memory for the answer and none for the prompt
    Which tokens does the model look back at when it writes the first one?
no-budget (need="nothing"): lets in a request for every free slot, whatever the budget is
    What limits the requests that run, besides the slots?
budget-not-met (limit="below"): refuses a request that would use the budget up exactly
    With 10 tokens of memory left, does a request that needs 10 fit?
memory-kept (given_back="never"): never counts the memory of a finished request as free
    After the last pass, how much of the budget should be left?
writes-to-the-end (stop="longest"): goes on after the end token
    When has the model finished, if it says so itself?
never-cut (stop="end"): writes until the end token comes, however long that takes
    What does the second part of a request say?
end-left-out (end="dropped"): leaves the end token out of the answer
    What is the last token of an answer that the model ended itself?
in-order-of-finishing (order="finished"): returns the answers in the order in which they were finished
    How does the third person find her answer in your list?
"""),
    cases=[
        Case("one request", _case([(2, 3, 9)], 1, 5)),
        Case("one request whose model ends before the limit", _case([(2, 5, 3)], 1, 10)),
        Case("two requests, two slots", _case([(1, 4, 9), (2, 2, 9)], 2, 20)),
        Case("three requests, one slot", _case([(1, 2, 9), (1, 3, 2), (1, 1, 9)], 1, 20)),
        Case("answers of 2, 6, 3 and 3 tokens, two slots", _case([(1, 2, 9), (1, 6, 9), (1, 3, 9), (1, 3, 9)], 2, 50)),
        Case("long prompts, and memory for two of them", _case([(6, 1, 9), (6, 1, 9), (6, 1, 9)], 3, 14)),
        Case("long answers, and memory for two of them", _case([(1, 6, 9), (1, 6, 9), (1, 6, 9)], 3, 14)),
        Case("three slots, and memory for two", _case([(3, 2, 9), (2, 3, 9), (1, 4, 9), (4, 1, 1)], 3, 10)),
        Case("three slots, a long prompt that must wait", _case([(2, 4, 9), (8, 3, 9), (1, 2, 9), (1, 1, 9)], 3, 12)),
        Case(
            "seven requests, three slots",
            _case([(2, 3, 9), (4, 6, 4), (1, 1, 1), (5, 5, 9), (3, 7, 2), (2, 2, 9), (6, 4, 3)], 3, 22),
        ),
        Case("no requests", _case([], 2, 10)),
    ],
    properties=[
        Property("A slot that is free is filled before the next pass.", _slots_are_not_left_empty),
        Property("First come, first served.", _first_come_first_served),
    ],
    alternatives=[
        Alternative("with a set of free slots", _with_a_set_of_free_slots),
        Alternative("adding up anew what is reserved", _counting_anew),
        Alternative("with a record for each request", _with_records),
    ],
    hints=(
        "What must be remembered between two passes: who waits, who runs where, and what else?",
        "Two parts alternate until nobody waits or runs. First fill free slots from the front of the line; then "
        "comes one pass, after which whoever has finished gives back both slot and memory.",
        """while waiting or running:
    for slot in range(engine.n_slots):
        ...  # taken, or nobody waits: the next slot
        if ____:
            break  # the next in line does not fit
        ...  # reserve, remember who runs here, start
    for slot, token in engine.step(list(running)).items():
        ...  # the token belongs to an answer; has that ended?
return answers""",
    ),
    sample=_sample,
    gradients=False,
)
