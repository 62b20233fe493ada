"""The drawings of chapter 7: the layer then and now, masks, patches, caches, memory, tiles, states, experts, LoRA."""

from coursework.pictures.drawing import INK, Drawing
from coursework.pictures.style import palette

GREY, BAD = "#555555", "#C22F2F"


def two_layers() -> Drawing:
    """The layer of 2017 beside that of 2025, part by part."""
    picture = Drawing(
        440,
        alt="Two layers side by side, read from the bottom to the top. Left, 2017: attention with as many heads of "
        "keys and values as of queries, added to the stream, then a LayerNorm in the stream; feed-forward with ReLU, "
        "added, LayerNorm in the stream. Right, 2025: each sublayer reads through an RMSNorm of its own; attention "
        "with rotary positions, norms on queries and keys and grouped heads; a gated feed-forward; both are added to "
        "the stream, which runs through undisturbed.",
        caption="On the left, a layer of 2017; on the right, one of Qwen3. The plan is the same; orange marks what "
        "changed.",
    )
    for x, year in ((70, "2017"), (345, "2025")):
        picture.stream((x, 408), (x, 38))
        picture.text((x + 120, 18), year, bold=True, size=19)
        picture.text((x, 424), "stream", size=15, colour=GREY)
    for y, words in ((330, ["attention", "H heads of k, v"]), (150, ["feed-forward", "ReLU"])):
        picture.line([(70, y + 44), (185, y + 44), (185, y + 28)])
        picture.box((185, y), (150, 54), words)
        picture.line([(185, y - 28), (185, y - 52), (84, y - 52)])
        picture.plus((70, y - 52))
        picture.box((70, y - 84), (104, 32), "LayerNorm", colour=GREY)
    rows = ((322, ["attention: rotary,", "QK-norm, grouped"]), (142, ["feed-forward:", "SwiGLU, a gate"]))
    for y, words in rows:
        picture.line([(345, y + 62), (424, y + 62)])
        picture.box((484, y + 62), (116, 32), "RMSNorm", colour=palette.key)
        picture.line([(484, y + 45), (484, y + 29)])
        picture.box((484, y), (178, 54), words, colour=palette.key)
        picture.line([(484, y - 28), (484, y - 52), (359, y - 52)])
        picture.plus((345, y - 52))
    return picture


def three_families() -> Drawing:
    """The masks of an encoder, a decoder and an encoder-decoder."""
    n, side, top, small, width = 5, 28, 78, 21, 3
    picture = Drawing(
        270,
        alt="Four grids of five by five cells; rows are queries, columns are keys. Encoder: all cells open. Decoder: "
        "open up to the diagonal. Encoder-decoder: a grid that is open everywhere for the source, and for the target "
        "one that is open up to the diagonal beside one on the source that is open everywhere.",
        caption="Rows are queries, columns are keys; what is blue may be read. An encoder–decoder has three of "
        "these masks.",
    )
    grids = ((16, False), (176, True), (334, False), (334, True))
    picture.text((86, 22), "encoder", bold=True)
    picture.text((86, 46), "BERT, ViT", size=15, colour=GREY)
    picture.text((246, 22), "decoder", bold=True)
    picture.text((246, 46), "GPT, Llama", size=15, colour=GREY)
    picture.text((462, 22), "encoder–decoder", bold=True)
    picture.text((462, 46), "T5, Whisper", size=15, colour=GREY)
    for left, causal in grids[:2]:
        for i in range(n):
            for j in range(n):
                at = (left + side * (j + 0.5), top + side * (i + 0.5))
                picture.cell(at, side - 4, allowed=j <= i or not causal)
    for left, causal, rows in ((344, False, 3), (424, False, 4), (510, True, 4)):
        for i in range(rows):
            for j in range(4 if causal else 3):
                at = (left + small * (j + 0.5) - 8, top + small * (i + 0.5))
                picture.cell(at, small - width, allowed=j <= i or not causal)
    for x, words in ((366, "source"), (448, "on source"), (544, "target")):
        picture.text((x, 186), words, size=15, colour=GREY)
    picture.text((86, 236), "all read all", size=15)
    picture.text((246, 236), "itself and earlier tokens", size=15)
    picture.text((462, 222), "the target reads the source,", size=15)
    picture.text((462, 243), "and its own past", size=15)
    return picture


def patches_in_a_row() -> Drawing:
    """An image of four patches becomes a row of four vectors."""
    picture = Drawing(
        250,
        alt="On the left an image, cut into four squares by a cross and numbered 0 to 3, row by row. In the middle "
        "the same squares in a row. One linear map turns each into a vector, and the vector of [CLS] goes in front. A "
        "learned position is added to each, and the five vectors go into an encoder.",
        caption="To the encoder an image is a sentence. The model must learn that patch 2 lies below patch 0.",
    )
    side, corner = 50, (18, 70)
    for number in range(4):
        row, column = divmod(number, 2)
        at = (corner[0] + side * (column + 0.5), corner[1] + side * (row + 0.5))
        picture.box(at, (side - 4, side - 4), str(number), colour=palette.query)
    picture.text((68, 44), "image", size=16, colour=GREY)
    picture.line([(124, 120), (164, 120)], width=3)
    for number in range(4):
        picture.box((196 + 56 * number, 196), (44, 44), str(number), colour=palette.query)
        picture.line([(196 + 56 * number, 172), (196 + 56 * number, 138)])
    picture.text((280, 236), "a row of patches", size=16, colour=GREY)
    picture.box((280, 118), (224, 36), "one linear map for all")
    for number in range(4):
        picture.line([(196 + 56 * number, 99), (196 + 56 * number, 72)])
        picture.text((196 + 56 * number, 56), f"+ p{number}", size=16, colour=palette.key)
        picture.line([(196 + 56 * number, 44), (196 + 56 * number, 30), (452, 30)], arrow=False)
    picture.line([(380, 30), (452, 30)])
    picture.text((506, 88), "[CLS] + p, in front", size=15, colour=GREY)
    picture.line([(506, 74), (506, 58)])
    picture.box((506, 32), (106, 46), "encoder", filled=True)
    return picture


def gate_in_numbers() -> Drawing:
    """A gated feed-forward with two hidden numbers."""
    picture = Drawing(
        270,
        alt="A feed-forward with a gate. The token goes into two maps. The map called gate gives 3 and minus 2, "
        "which SiLU turns into 2.86 and minus 0.24. The map called up gives 0.5 and 0.5. They are multiplied number "
        "by number: 1.43 and minus 0.12. The map called down makes the output.",
        caption="Both hidden numbers carry the same content, 0.5. The gate makes the first nearly three times as "
        "large, shrinks the second and flips its sign.",
    )
    picture.box((56, 135), (84, 44), "token x")
    picture.line([(98, 122), (150, 78)])
    picture.line([(98, 148), (150, 192)])
    picture.box((192, 68), (84, 42), "gate", colour=palette.key)
    picture.box((192, 202), (84, 42), "up", colour=palette.value)
    picture.line([(234, 68), (262, 68)])
    picture.line([(234, 202), (352, 202)])
    picture.numbers((266, 40), (("3.00",), ("−2.00",)), cell=(58, 28), colour=palette.key)
    picture.line([(326, 68), (352, 68)])
    picture.text((338, 26), "SiLU", size=15, colour=GREY)
    picture.numbers((356, 40), (("2.86",), ("−0.24",)), cell=(58, 28), colour=palette.key)
    picture.numbers((356, 174), (("0.50",), ("0.50",)), cell=(58, 28), colour=palette.value)
    picture.line([(385, 98), (385, 122)])
    picture.line([(385, 172), (385, 150)])
    picture.text((385, 136), "×", size=22)
    picture.line([(398, 136), (432, 136)])
    picture.numbers((436, 108), (("1.43",), ("−0.12",)), cell=(58, 28))
    picture.line([(496, 136), (514, 136)])
    picture.box((552, 136), (74, 42), "down")
    picture.text((385, 248), "number by number", size=15, colour=GREY)
    return picture


def cache_of_a_token() -> Drawing:
    """What a token leaves in the cache of one layer, as bars, for four designs."""
    picture = Drawing(
        236,
        alt="Four bars for what one token leaves in one layer's cache, with 32 query heads of width 128. 32 heads of "
        "keys and values: 8,192 numbers. 8 heads: 2,048. 1 head: 256. A latent vector of 512 and a rotary key of 64: "
        "576.",
        caption="One token in one layer, 32 query heads of width 128. Latent: c of 512 numbers, and 64 for the "
        "position. These 576 numbers serve all 32 heads, and are only 2¼ times as many as the key and value of one "
        "head, 256. DeepSeek itself has 128 heads.",
    )
    rows = (
        ("32 heads of k, v", 8192, palette.key),
        ("8 heads (Llama 3)", 2048, palette.key),
        ("1 head", 256, palette.key),
        ("latent: 512 + 64", 576, palette.value),
    )
    for number, (name, numbers, colour) in enumerate(rows):
        y = 40 + 50 * number
        picture.text((168, y), name, anchor="end", size=16)
        width = 330 * numbers / 8192
        picture.bar((180, y), (max(width, 4), 30), colour=colour)
        picture.text((188 + width, y), f"{numbers:,}", anchor="start", size=16, bold=True)
    picture.text((180, 220), "numbers for each token and layer", size=15, anchor="start", colour=GREY)
    return picture


def local_layers_for_one_global() -> Drawing:
    """Six layers of a decoder: five with a window, one without, and what each keeps in its cache."""
    picture = Drawing(
        270,
        alt="Six layers from the bottom to the top. Beside each a bar for the tokens in its cache. The global layer "
        "keeps all of them; each of the five local layers keeps only the latest, a thin line at the right end.",
        caption="What the caches keep of 131,072 tokens, to scale, oldest on the left. Five layers keep the latest "
        "1,024, the thin blue line, and drop what is grey; one keeps everything.",
    )
    for number in range(6):
        y, whole = 36 + 36 * number, number == 0
        picture.box((76, y), (124, 30), "global" if whole else "local", colour=palette.key if whole else palette.query)
        picture.bar((156, y), (424, 24), colour=palette.key if whole else palette.residual)
        if not whole:
            picture.line([(578.4, y - 12), (578.4, y + 12)], colour=palette.query, width=424 / 128, arrow=False)
    picture.text((156, 250), "first token", anchor="start", size=15, colour=GREY)
    picture.text((580, 250), "newest token", anchor="end", size=15, colour=GREY)
    return picture


def levels_of_memory() -> Drawing:
    """A GPU's small and large memory with their sizes and speeds."""
    picture = Drawing(
        280,
        alt="Arithmetic units and two memories. On top the units, 312 trillion operations a second. Below them the "
        "small memory on the chip: 20 megabytes, 19 terabytes a second. Below that the large memory: 40 gigabytes, "
        "1.5 terabytes a second. A wide double arrow joins the units with the small memory, a thin one the small "
        "with the large.",
        caption="An A100 (Dao et al. 2022, figure 1). Everything comes in through the thin arrow once; whatever "
        "doesn't fit into the small memory has to be fetched again and again.",
    )
    picture.box((190, 38), (240, 50), ["arithmetic units", "312 · 10¹² operations / s"], filled=True)
    picture.line([(190, 103), (190, 63)], colour=palette.value, width=5)
    picture.line([(190, 63), (190, 103)], colour=palette.value, width=5)
    picture.box((190, 130), (300, 54), ["small memory, on the chip", "20 MB"], colour=palette.value)
    picture.line([(190, 193), (190, 158)], colour=palette.key, width=3)
    picture.line([(190, 158), (190, 193)], colour=palette.key, width=3)
    picture.box((190, 222), (356, 56), ["large memory, beside the chip", "40 GB"], colour=palette.key)
    picture.text((212, 84), "19 TB / s", anchor="start", size=18, colour=palette.value, bold=True)
    picture.text((212, 175), "1.5 TB / s", anchor="start", size=18, colour=palette.key, bold=True)
    picture.text((378, 222), "queries, keys, values,", anchor="start", size=15, colour=GREY)
    picture.text((378, 243), "model weights, the cache", anchor="start", size=15, colour=GREY)
    return picture


def flash_tiles() -> Drawing:
    """A block of queries passes over the tiles of keys; only m, ℓ and a stay."""
    picture = Drawing(
        300,
        alt="A table of scores that is never written as a whole, cut into four by four tiles. The row of one block "
        "of queries is worked on: two tiles, blue, are done, the third, black, lies in the small memory, and the "
        "fourth, grey, is still to come. The tiles of the other rows are open. Beside it stand the only numbers that "
        "are kept for each query: the maximum m, the sum ℓ and the mixture a.",
        caption="Only the black tile exists at this moment. What is left of the blue ones is in m, ℓ and a; the grey "
        "one is still to come. The open tiles belong to other blocks of queries.",
    )
    left, top, side = 120, 54, 50
    for i in range(4):
        for j in range(4):
            middle = (left + side * (j + 0.5), top + side * (i + 0.5))
            colour = ("#8FC1DF", "#8FC1DF", INK, "#B4B4B4")[j] if i == 1 else "#9A9A9A"
            picture.box(middle, (side - 6, side - 6), colour=colour, filled=i == 1)
    picture.text((left + 2 * side, 22), "keys and values, tile by tile", size=16, colour=palette.key)
    picture.line([(left + 4, 42), (left + 4 * side - 4, 42)], colour=palette.key)
    picture.text((56, top + 1.5 * side - 10), "a block", size=15, colour=palette.query)
    picture.text((56, top + 1.5 * side + 10), "of queries", size=15, colour=palette.query)
    picture.line([(left + 4 * side + 6, top + 1.5 * side), (376, top + 1.5 * side)])
    kept = ["kept for each query", "maximum  m", "sum  ℓ", "mixture  a"]
    picture.box((472, top + 1.5 * side), (186, 108), kept, colour=palette.value)
    picture.text((472, 216), "at the end: a / ℓ", size=17, bold=True)
    picture.text((220, 278), "the table of scores is never whole", size=15, colour=GREY)
    return picture


def pairs_in_a_state() -> Drawing:
    """Two pairs are added into one state; a read with the first key gets too much."""
    picture = Drawing(
        280,
        alt="Two pairs of key and value are written into one state. Key 1, 0 with value 5 and key 0.6, 0.8 with "
        "value 10 give the state 11, 8. Read with the query 1, 0, which is the first key, it gives 11 and not 5.",
        caption="Linear attention adds everything into one state of fixed size. Keys that overlap are read back mixed.",
    )
    for y, key, value, product in ((56, ("1", "0"), "5", ("5", "0")), (150, ("0.6", "0.8"), "10", ("6", "8"))):
        picture.text((28, y - 32), "key", size=15, colour=palette.key, anchor="start")
        picture.numbers((28, y - 16), (key,), cell=(46, 30), colour=palette.key)
        picture.text((146, y), "×", size=20)
        picture.text((168, y - 32), "value", size=15, colour=palette.value, anchor="start")
        picture.numbers((168, y - 16), ((value,),), cell=(46, 30), colour=palette.value)
        picture.text((234, y), "=", size=20)
        picture.numbers((254, y - 16), (product,), cell=(46, 30))
    picture.line([(352, 55), (392, 88)])
    picture.line([(352, 150), (392, 116)])
    picture.text((446, 66), "state", bold=True)
    picture.numbers((400, 84), (("11", "8"),), cell=(46, 34))
    picture.line([(446, 122), (446, 196)])
    picture.text((458, 158), "read: q = 1, 0", size=15, colour=palette.query, anchor="start")
    picture.text((446, 216), "1 · 11 + 0 · 8 = 11", bold=True)
    picture.text((446, 246), "stored was 5", size=16, colour=BAD)
    return picture


def router_and_experts() -> Drawing:
    """A router sends a token to two of four experts; their outputs are weighted and summed."""
    picture = Drawing(
        330,
        alt="A token goes into a router, which gives four experts the scores 2, minus 1, 1 and 0. Expert 0 and "
        "expert 2 have the highest and are used, with the weights 0.73 and 0.27. Experts 1 and 3 are faint and "
        "compute nothing. The weighted outputs are added.",
        caption="Four experts are stored; only two run. The other two cost memory and no time.",
    )
    picture.box((60, 175), (88, 44), "token x")
    picture.line([(104, 175), (136, 175)])
    picture.box((182, 175), (88, 44), "router", colour=palette.query)
    scores, weights = ("2.0", "−1.0", "1.0", "0.0"), ("0.73", "", "0.27", "")
    for number, (score, weight) in enumerate(zip(scores, weights, strict=True)):
        y, colour = 58 + 78 * number, palette.value if weight else "#9A9A9A"
        picture.text((360, y - 33), f"score {score}", size=15, colour=INK if weight else GREY)
        picture.box((360, y), (112, 44), f"expert {number}", colour=colour)
        if weight:
            picture.line([(228, 175 + 8 * (number - 1.5)), (302, y)], colour=colour, width=3)
            picture.line([(418, y), (512, 175 + (-12 if number == 0 else 10))], colour=colour, width=3)
            picture.text((472, y + (24 if number == 0 else 12)), f"× {weight}", size=16, bold=True, anchor="start")
    picture.plus((526, 175))
    picture.line([(540, 175), (584, 175)])
    picture.text((564, 198), "output", size=15, colour=GREY)
    return picture


def thin_update() -> Drawing:
    """A frozen matrix W and, beside it, A and B with four numbers between them."""
    picture = Drawing(
        300,
        alt="The input x goes two ways. Left through the large frozen matrix W, 4,096 by 4,096, 16.8 million "
        "numbers. Right through the thin matrix A, down to 16 numbers, and the thin matrix B, up again; together "
        "131,072 numbers. The two results are added.",
        caption="Only the two thin matrices are trained. Their product has the size of W and can be added to it when "
        "training is over.",
    )
    picture.box((300, 276), (110, 34), "input x")
    picture.line([(246, 270), (150, 270), (150, 232)])
    picture.line([(356, 270), (442, 270), (442, 232)])
    picture.box((150, 155), (150, 150), ["W", "frozen", "16,777,216"], colour=GREY)
    picture.box((442, 210), (150, 40), "A: 4,096 → 16", colour=palette.key)
    picture.line([(442, 190), (442, 166)])
    picture.text((456, 176), "r = 16", size=15, anchor="start", colour=GREY)
    picture.box((442, 142), (150, 40), "B: 16 → 4,096", colour=palette.key)
    picture.text((522, 166), "trained:", size=15, colour=palette.key, anchor="start")
    picture.text((522, 188), "131,072", size=15, colour=palette.key, bold=True, anchor="start")
    picture.line([(150, 79), (150, 40), (286, 40)])
    picture.line([(442, 121), (442, 40), (314, 40)])
    picture.text((400, 22), "× α / r", size=16)
    picture.plus((300, 40))
    picture.line([(300, 27), (300, 6)])
    return picture


def config_and_layer() -> Drawing:
    """Which entries of a config describe which part of the model."""
    picture = Drawing(
        520,
        alt="A model from the bottom up, its config's entries beside the parts. Token table: vocab_size, hidden_size. "
        "In the layer, a norm, rms_norm_eps, then attention: num_attention_heads 16, num_key_value_heads 8, "
        "head_dim 128, rope_theta, attention_bias; and another norm, then the gated feed-forward: intermediate_size, "
        "hidden_act. Both are added to the stream. num_hidden_layers such layers, a norm, logits: tie_word_embeddings.",
        caption="Qwen3-0.6B, and the entries that decide what is built; model_type decides the rest.",
    )
    picture.frame((18, 112), (566, 342), dashed=True)
    picture.text((572, 132), "× 28  num_hidden_layers", size=15, anchor="end", colour=GREY)
    picture.stream((80, 470), (80, 92))
    picture.box((80, 488), (126, 36), "token table", colour=GREY)
    picture.text((156, 488), "vocab_size 151,936 · hidden_size 1,024", size=15, anchor="start")
    picture.box((80, 76), (126, 32), "norm", colour=palette.key)
    picture.line([(80, 60), (80, 44)])
    picture.box((80, 26), (126, 34), "logits", colour=GREY)
    picture.text((156, 26), "tie_word_embeddings: the token table", size=15, anchor="start")
    for y, name, colour in ((434, "attention", palette.query), (290, "feed-forward", palette.value)):
        picture.line([(80, y), (136, y)])
        picture.box((190, y), (106, 30), "norm", colour=palette.key)
        picture.text((256, y), "rms_norm_eps 10⁻⁶", size=15, anchor="start")
        picture.line([(190, y - 15), (190, y - 36)])
        picture.box((190, y - 57), (126, 40), name, colour=colour)
        picture.line([(190, y - 77), (190, y - 104), (94, y - 104)])
        picture.plus((80, y - 104))
    picture.text((262, 356), "model_type qwen3: norms on q and k", size=15, anchor="start", colour=palette.key)
    picture.text((262, 378), "heads 16 and 8 · head_dim 128", size=15, anchor="start")
    picture.text((262, 400), "rope_theta 10⁶ · attention_bias: none", size=15, anchor="start")
    picture.text((262, 233), "intermediate_size 3,072 · silu", size=15, anchor="start")
    return picture
