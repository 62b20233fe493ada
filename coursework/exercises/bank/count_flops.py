"""Exercise: count the operations of a pass from the sizes of a model."""

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def count_flops(batch, length, width, inner, layers, vocab, training):
    """six ints, bool
    -> int: operations of the matrix products of one pass, or of one training step"""
    tokens = batch * length
    projections = 8 * tokens * width * width  # queries, keys, values and back
    scores = 2 * batch * length * length * width  # all heads together
    mixing = 2 * batch * length * length * width
    feed_forward = 4 * tokens * width * inner
    head = 2 * tokens * width * vocab
    forward = layers * (projections + scores + mixing + feed_forward) + head
    return 3 * forward if training else forward


def _model(each=2, products=2, pairs="square", head=True, back=2, maps=4, inward=2, head_per_layer=False, batched=True):
    """A count whose settings are the misconceptions."""

    def count(batch, length, width, inner, layers, vocab, training):
        tokens = batch * length
        visible = {"square": length * length, "causal": length * (length + 1) // 2, "linear": length}[pairs]
        layer = maps * tokens * width * width + inward * tokens * width * inner
        layer += products * (batch if batched else 1) * visible * width
        logits = tokens * width * vocab * (2 if head == "twice" else 1) if head else 0
        forward = each * (layers * (layer + logits) if head_per_layer else layers * layer + logits)
        return (1 + back) * forward if training else forward

    return count


def _product_by_product(batch, length, width, inner, layers, vocab, training):
    tokens = batch * length
    products = []  # (rows, summed, columns) of each
    for _ in range(layers):
        products += 4 * [(tokens, width, width)]
        products += batch * [(length, width, length), (length, length, width)]
        products += [(tokens, width, inner), (tokens, inner, width)]
    products.append((tokens, width, vocab))
    forward = sum(2 * rows * summed * columns for rows, summed, columns in products)
    return forward * (3 if training else 1)


def _six_n_d_and_the_rest(batch, length, width, inner, layers, vocab, training):
    weights = layers * (4 * width * width + 2 * width * inner) + width * vocab  # what multiplies every token
    a_token = 2 * weights + 4 * layers * length * width
    return (3 if training else 1) * a_token * batch * length


def _with_course(batch, length, width, inner, layers, vocab, training):
    from course_lib.config import TransformerConfig
    from course_lib.scaling import count_flops as count

    config = TransformerConfig(
        d_model=width, n_heads=1, d_ff=inner, n_decoder_layers=layers, vocab_size=vocab, positions="none"
    )
    return count(config, batch, length, backward=training).total()


def _sample(draw):
    sizes = [draw.integer(1, high) for high in (7, 40, 24, 40, 5, 50)]
    return (*sizes, draw.boolean())


def _backward_costs_two_forwards(count) -> str | None:
    forward, step = count(2, 5, 3, 7, 2, 11, False), count(2, 5, 3, 7, 2, 11, True)
    return None if step == 3 * forward else f"A forward pass has {forward} operations, a training step {step}."


def _sequences_are_alike(count) -> str | None:
    one, three = count(1, 5, 3, 7, 2, 11, False), count(3, 5, 3, 7, 2, 11, False)
    return None if three == 3 * one else f"One sequence has {one} operations, three have {three}."


def _longer_costs_more_than_proportionally(count) -> str | None:
    one, two = count(1, 64, 3, 7, 2, 11, False), count(1, 128, 3, 7, 2, 11, False)
    return None if two > 2 * one else f"64 tokens have {one} operations and 128 tokens {two}."


EXERCISE = Exercise(
    title="Count the operations of a pass",
    what="""Write `count_flops(batch, length, width, inner, layers, vocab, training)` for the same decoder. Count
the products of matrices and nothing else: a product of $(m, k)$ and $(k, n)$ takes $2mkn$ operations, a
multiplication and an addition each. In a layer these are the four maps of attention, the scores $QK^\\top$, the
mixing of the values, and the two maps of the feed-forward. Scores and mixing go over all `length` × `length` pairs, as
the explicit form computes them, and all heads together are `width` wide. After the layers comes the head. Reading a row
of a table costs nothing. If `training`, count forward and backward: for each product the backward pass has two of the
same size. Return a whole number.""",
    why="""Seconds are operations divided by speed. The usual shortcut, six operations for each parameter and token, is
this count without the scores and the mixing.""",
    difficulty=2,
    minutes=10,
    reference=count_flops,
    model=_model,
    misconceptions=misconceptions("""
multiplications-only (each=1): counts the multiplications of a product and not its additions
    How many operations does a sum of k products take?
attention-products-left-out (products=0): leaves out the products of attention that no weight takes part in
    Does your count grow faster than the length?
scores-only (products=1): counts the scores but not the mixing of the values
    What are the weights of attention multiplied with?
causal-half (pairs="causal"): counts only the pairs that a causal mask leaves visible
    Which pairs does a full product of queries and keys compute?
one-key-a-query (pairs="linear"): lets each query meet a single key
    How many scores does one sequence have?
no-head (head=False): leaves out the product with the vocabulary
    How does the last vector of a token become logits?
head-in-every-layer (head_per_layer=True): computes logits after every layer
    How often does a pass compute logits?
backward-like-forward (back=1): gives the backward pass the cost of the forward pass
    For which two things is a gradient needed at a product of inputs and weights?
backward-only (back=0): counts a training step like a forward pass
    What happens in a training step after the loss is known?
with-recomputation (back=3): counts a second forward pass in each training step
    How many products does the backward pass have for each one of the forward pass?
three-maps (maps=3): counts three maps of attention
    What happens to the values after they were mixed?
half-a-feed-forward (inward=1): counts one map of the feed-forward
    How does the inner vector return to the width of the stream?
one-table-of-scores (batched=False): counts the scores of one sequence, however many there are
    Do two sequences of a batch share their scores?
table-as-a-product (head="twice"): counts reading the table of tokens as a product of matrices
    What does the task say that reading a row of a table costs?
"""),
    cases=[
        Case("one token, one layer", lambda: (1, 1, 2, 3, 1, 5, False)),
        Case("a batch of 2, length 5", lambda: (2, 5, 3, 7, 1, 11, False)),
        Case("two layers", lambda: (2, 5, 3, 7, 2, 11, False)),
        Case("the same, training", lambda: (2, 5, 3, 7, 2, 11, True)),
        Case("long and narrow", lambda: (3, 101, 2, 5, 2, 7, False)),
        Case("three layers, training", lambda: (5, 7, 11, 13, 3, 17, True)),
        Case("GPT-2, one sequence of 1024", lambda: (1, 1024, 768, 3072, 12, 50257, False)),
        Case("GPT-2, a training step", lambda: (8, 1024, 768, 3072, 12, 50257, True)),
    ],
    properties=[
        Property("A training step has three times the operations of a forward pass.", _backward_costs_two_forwards),
        Property("Three sequences have three times the operations of one.", _sequences_are_alike),
        Property("Twice the length has more than twice the operations.", _longer_costs_more_than_proportionally),
    ],
    alternatives=[
        Alternative("product by product", _product_by_product),
        Alternative("two operations a weight and token, and the rest", _six_n_d_and_the_rest),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "Which products of a layer have a matrix of weights as one factor, and which two have not?",
        "Write the shapes of both factors of each product. The H heads are each E wide, and H times E is the width.",
        """tokens = batch * length
projections = 8 * tokens * width * width
scores = ____
mixing = scores
...""",
    ),
    sample=_sample,
)
