"""Exercise: count the parameters of an encoder by formula."""

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def encoder_parameters(d_model, d_ff, n_layers):
    """D, F, number of layers -> number of trained parameters"""
    attention = 4 * (d_model * d_model + d_model)  # query, key, value, output: a matrix and a bias each
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    norms = 4 * d_model  # two norms, each with a weight and a bias
    return n_layers * (attention + feed_forward + norms)


def _model(maps=4, matrices=2, feed_bias="both", norms=4, layers="all", final=0):
    """A count whose settings are the misconceptions."""

    def count(d_model, d_ff, n_layers):
        attention = maps * (d_model * d_model + d_model)
        bias = {"both": d_ff + d_model, "none": 0, "inner": d_ff, "outer": d_model}[feed_bias]
        feed_forward = matrices * d_model * d_ff + bias
        layer = attention + feed_forward + norms * d_model
        return (n_layers if layers == "all" else 1) * layer + final * 2 * d_model

    return count


def _by_building_it(d_model, d_ff, n_layers):
    import torch

    layer = torch.nn.TransformerEncoderLayer(d_model, 1, d_ff, device="meta")  # no memory, only shapes
    return n_layers * sum(parameter.numel() for parameter in layer.parameters())


def _from_shapes(d_model, d_ff, n_layers):
    shapes = [(d_model, d_model), (d_model,)] * 4 + [(d_ff, d_model), (d_ff,), (d_model, d_ff), (d_model,)]
    shapes += [(d_model,)] * 4
    total = 0
    for shape in shapes:
        size = 1
        for length in shape:
            size *= length
        total += size
    return total * n_layers


def _multiplied_out(d_model, d_ff, n_layers):
    return n_layers * (4 * d_model**2 + 9 * d_model + 2 * d_model * d_ff + d_ff)


def _sample(draw):
    return draw.integer(1, 999), draw.integer(1, 4999), draw.integer(1, 99)


def _layers_are_alike(count) -> str | None:
    one, five = count(7, 11, 1), count(7, 11, 5)
    return None if five == 5 * one else f"One layer has {one} parameters by your count, five have {five}."


EXERCISE = Exercise(
    title="The parameters of an encoder",
    what="""Write `encoder_parameters(d_model, d_ff, n_layers)`: how many trained numbers a stack of post-norm
encoder layers has, from its width D, inner width F and number of layers. Each layer has an attention (maps for
query, key, value and output, D × D, with biases), a feed-forward (two maps, with biases), and two LayerNorms (weight
and bias). Neither embeddings nor an extra norm after the last layer are part of it.
Return a whole number.""",
    why="Before you train a model you can say how large it is, and a wrong count tells you that a layer is wrong.",
    difficulty=2,
    minutes=6,
    reference=encoder_parameters,
    model=_model,
    misconceptions=misconceptions("""
attention-without-output (maps=3): counts three maps of the attention
    Which map comes after the heads stand side by side?
one-matrix-in-the-feed-forward (matrices=1): counts one matrix of the feed-forward
    How does a vector of width F become one of width D again?
feed-forward-without-biases (feed_bias="none"): counts no biases in the feed-forward
    What does each map have besides its matrix?
inner-bias-forgotten (feed_bias="outer"): forgets the inner bias of the feed-forward
    How long is the bias of a map from D to F?
one-vector-missing (feed_bias="inner"): counts D numbers a layer too few: as many are in the last bias of the
        feed-forward
    How long is the bias of a map from F to D?
two-vectors-missing (norms=2): counts 2 D numbers a layer too few: as many are in a norm, or in the biases of two maps
    Which vectors of length D does a layer train, in its maps and in its norms?
four-vectors-missing (norms=0): leaves out 4 D numbers a layer: as many are in the biases of the attention, and in the
        norms
    Which vectors of length D does a layer train, one by one?
a-final-norm (final=1): counts a norm after the last layer
    With what does a post-norm layer end?
one-layer (layers="one"): counts one layer, whatever their number
    Do two layers share their weights?
"""),
    cases=[
        Case("width 3, 5 inside, 1 layer", lambda: (3, 5, 1)),
        Case("width 3, 5 inside, 2 layers", lambda: (3, 5, 2)),
        Case("width 7, 2 inside, 5 layers", lambda: (7, 2, 5)),
        Case("width 512, 2048 inside, 6 layers", lambda: (512, 2048, 6)),
        Case("width 11, 13 inside, 17 layers", lambda: (11, 13, 17)),
    ],
    properties=[Property("All layers have the same number of parameters, each its own.", _layers_are_alike)],
    alternatives=[
        Alternative("by building a layer without memory", _by_building_it),
        Alternative("from a list of shapes", _from_shapes),
        Alternative("multiplied out", _multiplied_out),
    ],
    hints=(
        "Which matrices does one layer have, and how long is the bias that goes with each?",
        "Count attention, feed-forward and norms of one layer apart; the feed-forward has biases of two lengths.",
        """attention = 4 * (d_model * d_model + d_model)
feed_forward = ____
norms = ...
return n_layers * (attention + feed_forward + norms)""",
    ),
    sample=_sample,
)
