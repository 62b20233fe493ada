"""Exercise: predict every shape in cross-attention, where queries and keys come from two sequences."""

from itertools import starmap

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def cross_attention_shapes(B, T, S, D, E, E_value):
    """Sizes -> dict of shapes: "query", "key", "value", "weights" and "output"

    Queries are linear maps of x (B, T, D); keys and values those of context (B, S, D).
    """
    return {
        "query": (B, T, E),
        "key": (B, S, E),
        "value": (B, S, E_value),
        "weights": (B, T, S),
        "output": (B, T, E_value),
    }


def _model(
    source="x", key_length="context", key_width="key", value_width="value", weights="queries-keys",
    output_length="queries", output_width="value", batch=True,
):  # fmt: skip
    """Shapes whose settings are the misconceptions."""

    def shapes(B, T, S, D, E, E_value):
        asks, answers = (T, S) if source == "x" else (S, T)
        keys = answers if key_length == "context" else asks
        sizes = {
            "query": (asks, D if key_width == "model" else E),
            "key": (E, keys) if key_width == "turned" else (keys, E if key_width == "key" else D),
            "value": (keys, E_value if value_width == "value" else E),
            "weights": {
                "queries-keys": (asks, keys),
                "keys-queries": (keys, asks),
                "keys-width": (asks, E),
                "one-row": (keys,),
                "one-head": (1, asks, keys),
                "queries-queries": (asks, asks),
            }[weights],
            "output": (
                asks if output_length == "queries" else keys,
                {"value": E_value, "key": E, "model": D}[output_width],
            ),
        }
        return {name: (B, *shape) if batch else shape for name, shape in sizes.items()}

    return shapes


def _with_layer(B, T, S, D, E, E_value):
    from course_lib.attention import CrossAttention, record_weights

    with torch.device("meta"):  # shapes without numbers: nothing is computed
        layer, x, context = CrossAttention(D, E, E_value), torch.empty(B, T, D), torch.empty(B, S, D)
        with record_weights(layer) as maps:
            output = layer(x, context)
        tensors = (*layer.projection(x, context), *maps.values(), output)
    names = ("query", "key", "value", "weights", "output")
    return {name: tuple(tensor.shape) for name, tensor in zip(names, tensors, strict=True)}


def _with_products(B, T, S, D, E, E_value):
    def product(left, right):
        return (*left[:-1], right[-1])  # (..., n) times (n, m) -> (..., m)

    x, context = (B, T, D), (B, S, D)
    query, key, value = starmap(product, [(x, (D, E)), (context, (D, E)), (context, (D, E_value))])
    weights = product(query, (E, key[1]))
    return {"query": query, "key": key, "value": value, "weights": weights, "output": product(weights, value)}


def _with_zeros(B, T, S, D, E, E_value):
    query, key, value = torch.zeros(B, T, E), torch.zeros(B, S, E), torch.zeros(B, S, E_value)
    weights = (query @ key.mT).softmax(dim=-1)
    tensors = {"query": query, "key": key, "value": value, "weights": weights, "output": weights @ value}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _case(*sizes):
    names = ("B", "T", "S", "D", "E", "E_value")
    return Case(", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True)), lambda: sizes)


def _sample(draw):
    return tuple(draw.integer(1, 9) for _ in range(6))


def _products_fit(shapes) -> str | None:
    found = shapes(2, 3, 5, 7, 11, 13)
    if found["query"][-1] != found["key"][-1]:
        return f"A query of width {found['query'][-1]} has no dot product with a key of width {found['key'][-1]}."
    if found["weights"][-1] != found["value"][-2]:
        return f"{found['weights'][-1]} weights cannot mix {found['value'][-2]} values."
    return None


def _one_output_for_each_query(shapes) -> str | None:
    found = shapes(2, 3, 5, 7, 11, 13)
    if found["output"][-2] != found["query"][-2]:
        return f"There are {found['query'][-2]} queries and {found['output'][-2]} outputs."
    return None


EXERCISE = Exercise(
    title="Shapes when two sequences meet",
    kind="predict",
    what="""In cross-attention a sequence `x` of shape `(B, T, D)` asks, and another one, `context` of shape `(B, S,
D)`, is asked. Three linear maps give queries and keys of width `E` and values of width `E_value`; there is one head
and no map after it. Predict all shapes: return a dict with the keys "query", "key", "value", "weights" and "output".
Compute nothing, write down the tuples.""",
    why="""A translator's decoder reads the source sentence this way. Whoever can say the five shapes beforehand finds
many errors in attention code without running it.""",
    difficulty=2,
    minutes=6,
    reference=cross_attention_shapes,
    model=_model,
    misconceptions=misconceptions("""
roles-swapped (source="context"): lets `context` ask and `x` answer
    Which of the two sequences wants to know something, and which one is looked at?
all-from-x (key_length="x"): takes keys and values from `x`, as self-attention does
    How would a word of `context` reach the output if it had neither a key nor a value?
output-for-each-key (output_length="keys"): returns one output for each token of `context`
    How many questions were asked, and how many answers should there be?
output-as-wide-as-keys (output_width="key"): makes the output as wide as the keys
    Which vectors is the output an average of?
output-as-wide-as-model (output_width="model"): brings the output back to the width D
    Which map would change the width after the weighted average, and is there one here?
values-as-wide-as-keys (value_width="key"): makes the values as wide as the keys
    Does anything multiply a value with a key or a query, so that their widths would have to agree?
weights-transposed (weights="keys-queries"): gives the weights a row for each key
    Which rows of the weights sum to one: those of the queries, or those of the keys?
weights-as-wide-as-keys (weights="keys-width"): lets the axis E survive in the weights
    A dot product of two vectors of width E: how many numbers does it give?
one-row-of-weights (weights="one-row"): has a single row of weights, shared by all queries
    Do two different queries look at the same tokens to the same degree?
query-and-key-not-projected (key_width="model"): leaves queries and keys at the width D
    What do the first two of the three linear maps do to the width of a token?
batch-forgotten (batch=False): leaves out the axis of the batch
    How many sentences go through the layer at once?
key-turned (key_width="turned"): gives the key in the shape in which it enters the product
    Is the key turned by its linear map, or only later, in the product with the query?
axis-of-one-head (weights="one-head"): gives the weights an axis for the one head
    How many axes have query and key, and how many has their product?
weights-among-queries (weights="queries-queries"): gives each query a weight for each query
    Which tokens does a query of cross-attention look at?
"""),
    cases=[_case(1, 2, 3, 5, 7, 11), _case(2, 3, 5, 7, 11, 13), _case(5, 7, 3, 13, 2, 11), _case(3, 1, 7, 5, 2, 13)],
    properties=[
        Property("There is one output for each query.", _one_output_for_each_query),
        Property(
            "Every product must fit: a query and a key have the same width, each value has one weight.", _products_fit
        ),
    ],
    alternatives=[
        Alternative("ask the layer, on a device that computes nothing", _with_layer),
        Alternative("by the rule for products of matrices", _with_products),
        Alternative("with tensors of zeros", _with_zeros),
    ],
    hints=(
        "Which of the three projections see `x`, which see `context`, and what does each do to the last axis?",
        "A score belongs to one query and one key. An output belongs to one query and is an average of values.",
        """return {
    "query": (B, T, E),
    "key": (B, ..., ...),
    "value": ...,
    "weights": (B, ____),  # one number for each pair of a query and a key
    "output": ...,
}""",
    ),
    sample=_sample,
    gradients=False,
)
