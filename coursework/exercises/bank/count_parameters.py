"""Exercise: count the parameters of a decoder from its sizes."""

import math

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def count_parameters(vocab, width, inner, layers, positions, tied):
    """five ints, bool
    -> int: the parameters of a decoder with biases, LayerNorm and learned positions"""
    attention = 4 * (width * width + width)  # queries, keys, values and back
    feed_forward = width * inner + inner + inner * width + width
    norms = 2 * (width + width)  # one before each sublayer: scale and shift
    tables = (vocab + positions) * width
    head = 0 if tied else vocab * width
    return tables + layers * (attention + feed_forward + norms) + 2 * width + head


def _model(
    head="untied",
    bias=True,
    maps=4,
    inward=2,
    norm=2,
    final=True,
    learned=True,
    norms=2,
    per_layer=True,
    head_bias=False,
):
    """A count whose settings are the misconceptions."""

    def count(vocab, width, inner, layers, positions, tied):
        attention = maps * (width * width + (width if bias in (True, "attention") else 0))
        feed_forward = inward * width * inner + ((inward - 1) * inner + width if bias is True else 0)
        layer = attention + feed_forward + norms * norm * width
        total = (layers if per_layer else 1) * layer + (norm * width if final else 0)
        total += vocab * width + (positions * width if learned else 0)
        extra = {"untied": not tied, "always": True, "never": False, "reversed": tied}[head]
        return total + (vocab * width if extra else 0) + (vocab if head_bias and extra else 0)

    return count


def _piece_by_piece(vocab, width, inner, layers, positions, tied):
    shapes = [(vocab, width), (positions, width), (width,), (width,)]  # the last two: the final norm
    for _ in range(layers):
        shapes += 4 * [(width, width), (width,)]
        shapes += [(inner, width), (inner,), (width, inner), (width,)]
        shapes += 4 * [(width,)]
    if not tied:
        shapes.append((vocab, width))
    return sum(math.prod(shape) for shape in shapes)


def _with_torch(vocab, width, inner, layers, positions, tied):
    from torch import nn

    layer = nn.TransformerEncoderLayer(width, 1, inner, device="meta")  # a decoder layer without cross-attention
    count = layers * sum(weight.numel() for weight in layer.parameters())
    return count + (vocab + positions + 2 + (0 if tied else vocab)) * width


def _with_course(vocab, width, inner, layers, positions, tied):
    from course_lib.config import TransformerConfig
    from course_lib.scaling import count_parameters as count

    config = TransformerConfig(
        d_model=width,
        n_heads=1,
        d_ff=inner,
        n_decoder_layers=layers,
        vocab_size=vocab,
        positions="learned",
        max_length=positions,
        norm_place="pre",
        tie_embeddings=tied,
    )
    return count(config).total()


def _sample(draw):
    sizes = [draw.integer(1, high) for high in (50, 24, 40, 5, 30)]
    return (*sizes, draw.boolean())


def _layers_are_alike(count) -> str | None:
    one, two, three = (count(11, 3, 7, layers, 5, True) for layers in (1, 2, 3))
    return None if three - two == two - one > 0 else f"One, two and three layers give {one}, {two} and {three}."


def _tying_saves_one_table(count) -> str | None:
    saved = count(11, 3, 7, 2, 5, False) - count(11, 3, 7, 2, 5, True)
    return None if saved == 33 else f"With 11 tokens at width 3, tying changes the count by {-saved}."


EXERCISE = Exercise(
    title="Count a model before it exists",
    what="""Write `count_parameters(vocab, width, inner, layers, positions, tied)` for a decoder as in GPT-2. It has
a table of `vocab` token vectors and one of `positions` learned position vectors, then `layers` equal layers and a
final LayerNorm. A layer is self-attention (queries, keys, values and output, each from `width` to `width`), a
feed-forward (`width` to `inner` and back) and a LayerNorm for each of the two; every linear map has a bias, a
LayerNorm a scale and a shift. The head is a map from `width` to `vocab` without a bias; if `tied`, its weights are
the token table itself. Return a whole number.""",
    why="""Six lines of arithmetic give the number on a model card. If your number differs by more than rounding,
either the card or the description of the model is wrong.""",
    difficulty=2,
    minutes=8,
    reference=count_parameters,
    model=_model,
    misconceptions=misconceptions("""
tied-table-twice (head="always"): counts the tied table twice, once as a table and once as the head
    How many tensors hold the weights of a tied head and of its table?
head-forgotten (head="never"): counts no head even where it has weights of its own
    By how much do your counts of the tied and the untied model differ?
tying-reversed (head="reversed"): adds the head where it is tied and leaves it out where it is not
    Which of the two models is larger, the tied one or the untied one?
biases-left-out (bias=False): counts the matrices of the linear maps without their biases
    How many numbers has `nn.Linear(3, 5)`?
three-maps (maps=3): counts three maps of attention
    What happens to the values after they were mixed?
one-map-of-attention (maps=1): counts a single map of attention
    How many things are made from a token's vector before the scores?
gated (inward=3): counts three matrices of the feed-forward, as if it were gated
    How many linear maps lie between the layer's width and back?
norm-without-shift (norm=1): gives each LayerNorm one vector
    What does LayerNorm do to the numbers after it has standardised them?
norms-left-out (norm=0): counts no norms
    Which parts of a layer besides the linear maps are learned?
no-final-norm (final=False): leaves out the norm before the head
    What stands between the last layer and the head?
one-norm-a-layer (norms=1): counts one norm a layer
    How many sublayers has a layer, and what does each one read?
positions-left-out (learned=False): counts no positions
    Which part of your sum changes when the context becomes longer?
one-layer (per_layer=False): counts one layer, however many there are
    Do two layers share their weights?
head-with-a-bias (head_bias=True): gives the head a bias
    Does the task give the head a bias?
biases-of-attention-only (bias="attention"): counts no biases in the feed-forward
    Which of the linear maps have a bias?
"""),
    cases=[
        Case("one layer of width 2, tied", lambda: (5, 2, 3, 1, 7, True)),
        Case("the same, untied", lambda: (5, 2, 3, 1, 7, False)),
        Case("two layers of width 3", lambda: (11, 3, 7, 2, 5, True)),
        Case("three layers, inner width 13, untied", lambda: (17, 5, 13, 3, 19, False)),
        Case("width 128, two layers, a small vocabulary", lambda: (1000, 128, 512, 2, 64, True)),
        Case("GPT-2, the small one", lambda: (50257, 768, 3072, 12, 1024, True)),
        Case("GPT-2 with a head of its own", lambda: (50257, 768, 3072, 12, 1024, False)),
    ],
    properties=[
        Property("Every further layer adds the same number.", _layers_are_alike),
        Property("Tying saves exactly one table of tokens.", _tying_saves_one_table),
    ],
    alternatives=[
        Alternative("tensor by tensor", _piece_by_piece),
        Alternative("with a layer of torch on the meta device", _with_torch),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "Which tensors would `model.named_parameters()` list for one layer, and which ones beside the layers?",
        "Count one layer in three parts: four square maps, two maps of the feed-forward, two norms, all with biases.",
        """attention = 4 * (width * width + width)
feed_forward = ...
norms = ...
head = ____
return tables + layers * (attention + feed_forward + norms) + 2 * width + head""",
    ),
    sample=_sample,
)
