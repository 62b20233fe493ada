"""The whole Transformer in one picture, the map of the course."""

from collections.abc import Sequence

from coursework.pictures.drawing import INK, Drawing
from coursework.pictures.style import palette


def whole_transformer(here: int | None = None) -> Drawing:
    """Figure 1 of the course: encoder left, decoder right, a sentence in both, and where each chapter belongs.

    Args:
        here: the chapter that the reader is in; its part is lit and the others are faint. None lights all.
    """
    where = "" if here is None else f" Lit: the parts that chapter {here:02d} is about."
    picture = Drawing(
        770,
        alt="The whole Transformer. On the left the encoder reads the German words drei Katzen schlafen: token vectors "
        "plus positions, then N layers of self-attention and feed-forward, each added to the stream. On the right the "
        "decoder reads start, three, cats: token vectors plus positions, then N layers of masked self-attention, "
        "cross-attention to the encoder's output, and feed-forward. A linear map and a softmax give the "
        "probabilities of the next words: three, cats, sleep. Numbers on the parts are those of the chapters." + where,
        caption="The whole Transformer, with the chapter in which you build each part.",
    )

    def badge(x: float, y: float, *chapters: int) -> None:
        for number, chapter in enumerate(chapters):
            picture.badge((x, y + 31 * number), str(chapter), lit=here is None or here == chapter)

    def sublayer(x: float, y: float, words: Sequence[str], colour: str, *chapters: int) -> None:
        """A box beside the stream that stands at x: it reads from the stream below and adds to it above."""
        picture.line([(x, y + 44), (x + 125, y + 44), (x + 125, y + 24)])
        picture.box((x + 125, y), (150, 46), words, colour=colour)
        picture.line([(x + 125, y - 23), (x + 125, y - 40), (x + 13, y - 40)])
        picture.plus((x, y - 40))
        badge(x + 205, y - 16, *chapters)

    encoder, decoder, bottom = 50, 335, 700
    for left, words, height, chapter in ((20, "Encoder", 260, 4), (305, "Decoder", 390, 5)):
        picture.frame((left, 555 - height), (275, height))
        picture.text((left + 50, 579), words, anchor="start", bold=True)
        picture.text((left + 264, 538), "N ×", anchor="end", colour=palette.residual, bold=True)
        badge(left + 153, 579, chapter)
    # The encoder's output goes into the cross-attention of every layer, behind the decoder's stream.
    picture.line([(encoder, 268), (encoder, 235), (298, 235), (298, 365), (384, 365)], colour=palette.key, width=3.5)
    picture.stream((encoder, 640), (encoder, 265))
    picture.stream((decoder, 640), (decoder, 128))

    sublayer(encoder, 490, ["self-", "attention"], palette.query, 1, 2)
    sublayer(encoder, 365, ["feed-forward"], INK, 4)
    sublayer(decoder, 490, ["masked self-", "attention"], palette.query, 1, 2)
    sublayer(decoder, 365, ["cross-", "attention"], palette.key, 5)
    sublayer(decoder, 240, ["feed-forward"], INK, 4)
    picture.text((170, 217), "to every layer of the decoder", size=16, colour=palette.key)

    for x, sentence, name in (
        (encoder, ("drei", "Katzen", "schlafen"), "Source"),
        (decoder, ("⟨start⟩", "three", "cats"), "Target so far"),
    ):
        picture.box((x + 102, 640), (245, 34), "token vectors + positions", colour=palette.value)
        for number, word in enumerate(sentence):
            picture.box((x + 18 + 84 * number, bottom), (80, 32), word, colour="#777777")
            picture.line([(x + 18 + 84 * number, bottom - 16), (x + 18 + 84 * number, 658)])
        picture.text((x + 102, bottom + 40), name)
        badge(x + 234, 622, 3)

    picture.box((decoder + 102, 110), (245, 36), "linear map + softmax", colour=palette.output)
    for number, word in enumerate(("three", "cats", "sleep")):
        x = decoder + 18 + 84 * number
        picture.line([(x, 92), (x, 66)])
        picture.box((x, 49), (80, 32), word, colour=palette.output)
    picture.text((decoder + 102, 20), "Next word at each position")
    badge(569, 92, 5)
    picture.text((20, 30), "Trained in", anchor="start")
    badge(127, 30, 6)
    picture.text((20, 66), "Its relatives in", anchor="start")
    badge(168, 66, 7)
    picture.text((20, 102), "What it costs in", anchor="start")
    badge(178, 102, 8)
    return picture
