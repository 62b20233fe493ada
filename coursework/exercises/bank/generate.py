"""Exercise: the loop that writes, with a cache."""

import torch
from torch import nn

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import integers, normal


@torch.no_grad()
def generate(model, tokens, n_new, choose):
    """a GPT, ids (B, T), a number, a function (B, V) -> (B, 1) -> ids (B, T + n_new)"""
    caches = [{} for _ in model.layers]
    unread = tokens
    for _ in range(n_new):
        logits = model(unread, caches)[:, -1]  # (B, V), of the newest position
        unread = choose(logits)  # (B, 1)
        tokens = torch.cat([tokens, unread], dim=1)
    return tokens


class _Model(nn.Module):
    """Stands for a GPT: logits (B, T, V) that follow from all tokens so far; notes what it reads, and how."""

    def __init__(self, table, n_layers):
        super().__init__()
        self.table, self.layers = table, nn.ModuleList(nn.Identity() for _ in range(n_layers))
        self.read, self.with_caches, self.with_gradients = [], True, False

    def forward(self, tokens, caches=None):
        self.read.append(tokens.clone())
        self.with_caches &= caches is not None
        self.with_gradients |= torch.is_grad_enabled()
        for number in range(len(self.layers)):
            cache = {} if caches is None else caches[number]
            seen = torch.cat([cache.get("k", tokens[:, None, :0, None]), tokens[:, None, :, None]], dim=2)
            cache["k"] = cache["v"] = seen  # (B, 1, S + T, 1)
        total = (seen[:, 0, :, 0] + 1).cumsum(dim=1)[:, -tokens.size(1) :]  # (B, T)
        return self.table[(2 * total + tokens) % len(self.table)]


def _nearest(logits):
    """The token whose logit is nearest to -1.2, so that it shows what else than logits comes."""
    return (logits + 1.2).abs().argmin(dim=-1, keepdim=True)


def _run(generate, tokens, n_new, table, n_layers):
    """The text, the ids that the model read in each pass, whether with caches, and with a graph for gradients."""
    model = _Model(table, n_layers)
    text = generate(model, tokens, n_new, _nearest)
    return {"text": text, "read": model.read, "caches": model.with_caches, "graph": model.with_gradients}


def _model(
    caches="own", reads="new", logits="last", returns="all", count="exact", graph=False, chosen="choose",
    prompt="whole",
    joined="behind", after="nothing",
):  # fmt: skip
    """A loop whose settings are the misconceptions."""

    def write(model, tokens, n_new, choose):
        with torch.set_grad_enabled(graph):
            T = tokens.size(1)
            shared = {}
            kept = [shared for _ in model.layers] if caches == "shared" else [{} for _ in model.layers]
            unread = tokens[:, -1:] if prompt == "last" else tokens
            if prompt == "by-token":
                for one in tokens[:, :-1].split(1, dim=1):
                    model(one, kept)
                unread = tokens[:, -1:]
            times = {"exact": n_new, "one-more": n_new + 1, "one-less": max(n_new - 1, 0), "total": max(n_new - T, 0)}
            for _ in range(times[count]):
                if caches == "fresh":
                    kept = [{} for _ in model.layers]
                out = model(unread, None if caches == "none" else kept)
                row = out[:, 0] if logits == "first" else out.mean(1) if logits == "mean" else out[:, -1]
                row = {"softmax": row.softmax(-1), "log": row.log_softmax(-1)}.get(chosen, row)
                new = row.argmax(dim=-1, keepdim=True) if chosen == "argmax" else choose(row)
                if chosen == "first-row":
                    new = new[:1].expand(len(new), 1)
                tokens = torch.cat([new, tokens] if joined == "before" else [tokens, new], dim=1)
                unread = {"new": new, "all": tokens, "prompt": unread}[reads]
            if after == "reads":
                model(unread, kept)
            return {"all": tokens, "new": tokens[:, T:], "last": tokens[:, -1:]}[returns]

    return write


@torch.no_grad()
def _with_a_list(model, tokens, n_new, choose):
    caches, written = [{} for _ in range(len(model.layers))], [tokens]
    for _ in range(n_new):
        written.append(choose(model(written[-1], caches)[:, -1, :]))
    return torch.cat(written, dim=1)


@torch.inference_mode()
def _into_reserved_room(model, tokens, n_new, choose):
    B, T = tokens.shape
    text = torch.cat([tokens, tokens.new_zeros(B, n_new)], dim=1)
    caches, first = [{} for _ in model.layers], 0
    for end in range(T, T + n_new):
        logits = model(text[:, first:end], caches)
        text[:, end : end + 1] = choose(logits[:, -1])
        first = end
    return text


def _until_long_enough(model, tokens, n_new, choose):
    length = tokens.shape[1] + n_new
    with torch.no_grad():
        caches = [{} for layer in model.layers]
        unread = tokens
        while tokens.shape[1] < length:
            unread = choose(model(unread, caches).select(1, -1))
            tokens = torch.hstack([tokens, unread])
    return tokens


@maker
def _case(B, T, n_new, V, n_layers, seed):
    table = normal(V, V, seed=seed + 1, grad=False)
    return {
        "tokens": integers(B, T, low=0, high=V - 1, seed=seed), "n_new": n_new, "table": table, "n_layers": n_layers
    }  # fmt: skip


def _sample(draw):
    B, T, n_new, V, n_layers = (draw.integer(1, high) for high in (3, 5, 5, 9, 3))
    return {
        "tokens": draw.integers(B, T, low=0, high=V + 1),
        "n_new": n_new - 1,
        "table": draw.normal(V + 2, V + 2, grad=False),
        "n_layers": n_layers,
    }


def _reads_each_token_once(call) -> str | None:
    made = _case(1, 3, 4, 7, 2, seed=91)()
    read = sum(one.size(1) for one in call(**made)["read"])
    if read == 6:
        return None
    return f"For 3 tokens of a prompt and 4 new ones the model read {read} tokens; each is read once, but for the last."


def _begins_with_the_prompt(call) -> str | None:
    made = _case(2, 3, 2, 7, 2, seed=95)()
    text = call(**made)["text"]
    if text.shape == (2, 5) and torch.equal(text[:, :3], made["tokens"]):
        return None
    return f"With a prompt of 3 tokens and 2 to write, the result has the shape {tuple(text.shape)}."


EXERCISE = Exercise(
    title="Write with a cache",
    what="""Write `generate(model, tokens, n_new, choose)`. The model is called as `model(tokens, caches)`, and
`caches` is a list with one dict for each of `model.layers`, empty at first: the model fills them. In its first pass it
reads the whole prompt; after that, in each pass, the one token that it has not read yet. `choose` turns the logits
(B, V) at the newest position into tokens (B, 1). Return prompt and new tokens in one tensor, after exactly `n_new`
passes; `n_new` may be 0. No gradients are needed here. Leave the prompt as it is.
Dropout is not your concern: the model comes in evaluation mode.""",
    why="This loop is what runs when a chat answers you.",
    difficulty=3,
    minutes=15,
    reference=generate,
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
no-cache (caches="none"): gives the model no caches, but only the new token to read
    What does the model know of the tokens before the one that it reads?
new-caches-at-each-step (caches="fresh"): makes new, empty caches at each step
    How long must the caches live?
one-dict-for-all (caches="shared"): gives all layers one and the same dict
    If you put something into the first dict of your list, what stands in the second?
reads-all-again (reads="all"): lets the model read the whole text at each step, although it is in the caches
    After the prompt, how many tokens has the model not read yet?
reads-the-prompt-again (reads="prompt"): lets the model read the prompt at each step, and never what was written
    Which token has the model not read yet after the first pass?
first-position (logits="first"): chooses by the logits of the first position
    Which position's logits are about the token that comes next?
mean-of-the-positions (logits="mean"): chooses by the mean of the logits of all positions
    Which position's logits are about the token that comes next?
new-tokens-only (returns="new"): returns the new tokens without the prompt
    How long must the result be for a prompt of three tokens?
last-token-only (returns="last"): returns the last token alone
    How long must the result be for a prompt of three tokens?
one-too-many (count="one-more"): writes one token too many
    How many passes does the task allow?
one-too-few (count="one-less"): writes one token too few
    How many passes does the task allow?
length-counts-the-prompt (count="total"): counts the tokens of the prompt among those to write
    Is `n_new` the length of the text, or of what is added to it?
keeps-a-graph (graph=True): lets PyTorch keep what it would need for gradients
    What does PyTorch remember of each pass unless you tell it otherwise?
always-greedy (chosen="argmax"): takes the most probable token itself
    Who chooses, your loop or the function that it was given?
chooses-by-probabilities (chosen="softmax"): gives `choose` probabilities in place of logits
    What does `choose` expect?
chooses-by-log-probabilities (chosen="log"): gives `choose` logarithms of probabilities in place of logits
    What does `choose` expect?
one-choice-for-all-texts (chosen="first-row"): appends the first text's choice to all texts
    Do all texts of a batch go on with the same token?
last-token-of-the-prompt (prompt="last"): lets the model read only the last token of the prompt
    What does the model know of the beginning of the prompt?
prompt-token-by-token (prompt="by-token"): lets the model read the prompt one token at a time
    How many passes does the prompt need?
new-tokens-in-front (joined="before"): puts new tokens before the text
    Where does the newest token of a text stand?
reads-the-last-token-too (after="reads"): lets the model read the last token although nothing follows
    How many passes does the task allow?
"""),
    cases=[
        Case("a prompt of 1 token, 1 to write", _case(1, 1, 1, 5, 1, seed=1)),
        Case("a prompt of 2 tokens, 3 to write, 2 layers", _case(1, 2, 3, 5, 2, seed=11)),
        Case("2 prompts of 3 tokens, 4 to write", _case(2, 3, 4, 7, 3, seed=21)),
        Case("3 prompts of 4 tokens, 2 to write", _case(3, 4, 2, 9, 2, seed=31)),
        Case("2 prompts of 3 tokens, 6 to write", _case(2, 3, 6, 11, 3, seed=41)),
        Case("nothing to write", _case(2, 3, 0, 5, 2, seed=51)),
    ],
    properties=[
        Property("Each token is read once.", _reads_each_token_once),
        Property("The result begins with the prompt.", _begins_with_the_prompt),
    ],
    alternatives=[
        Alternative("with a list of pieces", _with_a_list),
        Alternative("into reserved room", _into_reserved_room),
        Alternative("until the text is long enough", _until_long_enough),
    ],
    hints=(
        "What has the model not read yet before the first pass, and what before the second?",
        "Make the caches once, before the loop. Keep two tensors: the text so far, and what is still unread.",
        """caches = [{} for _ in model.layers]
unread = tokens
for _ in range(n_new):
    logits = ...
    unread = ____
    tokens = ...
return tokens""",
    ),
    sample=_sample,
    gradients=False,
)
