"""Exercise: cut images into patches, the tokens of ViT."""

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal, strided


def patchify(images, size):
    """(B, C, height, width), both multiples of size
    -> (B, N, C * size * size), patches row by row"""
    B, C, height, width = images.shape
    rows, columns = height // size, width // size
    cut = images.reshape(B, C, rows, size, columns, size)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(B, rows * columns, C * size * size)


def _model(order="rows", inside="channels-first", cut="blocks", pixels="rows"):
    """Cutting whose settings are the misconceptions."""

    def patches(images, size):
        B, C, height, width = images.shape
        rows, columns = height // size, width // size
        if cut == "reshape":
            return images.reshape(B, rows * columns, C * size * size)
        parts = images.reshape(B, C, rows, size, columns, size)
        if inside == "channel-by-channel":
            return parts.permute(0, 1, 2, 4, 3, 5).reshape(B, rows * columns, C * size * size)
        if cut == "dealt":
            parts = images.reshape(B, C, size, rows, size, columns).permute(0, 1, 3, 2, 5, 4)
        parts = parts.permute(0, 2, 4, 1, 3, 5)  # (B, rows, columns, C, size, size)
        if order == "columns":
            parts = parts.transpose(1, 2)
        if order == "backwards":
            parts = parts.flip(1)
        if pixels == "columns":
            parts = parts.transpose(4, 5)
        if inside == "channels-last":
            parts = parts.permute(0, 1, 2, 4, 5, 3)
        if inside == "channels-apart":
            return parts.permute(0, 3, 1, 2, 4, 5).reshape(B, C * rows * columns, size * size)
        return parts.reshape(B, rows * columns, C * size * size)

    return patches


def _with_unfold(images, size):
    return F.unfold(images, kernel_size=size, stride=size).transpose(1, 2)  # (B, C * size * size, N) -> (B, N, .)


def _with_loops(images, size):
    patches = [
        images[:, :, top : top + size, left : left + size].flatten(1)
        for top in range(0, images.size(2), size)
        for left in range(0, images.size(3), size)
    ]
    return torch.stack(patches, dim=1)


def _with_convolution(images, size):
    width = images.size(1) * size * size
    kernel = torch.eye(width, dtype=images.dtype).view(width, images.size(1), size, size)
    return F.conv2d(images, kernel, stride=size).flatten(2).transpose(1, 2)


def _with_course(images, size):
    from course_lib.variants import patchify

    return patchify(images, (size, size))


def _case(B, C, rows, columns, size, seed, dtype=torch.float32):
    return lambda: (normal(B, C, rows * size, columns * size, seed=seed, dtype=dtype), size)


def _strided():
    return strided(normal(2, 3, 4, 6, seed=41)), 2


def _sample(draw):
    size, dtype = draw.integer(1, 3), draw.dtype()
    shape = draw.integer(1, 3), draw.integer(1, 3), size * draw.integer(1, 3), size * draw.integer(1, 4)
    return draw.normal(*shape, dtype=dtype), size


def _one_pixel_one_patch(patchify) -> str | None:
    images = normal(1, 2, 4, 6, seed=51)
    changed = images.detach().clone()
    changed[0, 1, 1, 4] += 3.0  # in the first row of patches, the third of them
    before, after = patchify(images, 2), patchify(changed, 2)
    if before.shape != (1, 6, 8):
        return f"For 4 x 6 pixels of 2 channels and patches of 2 the shape is {tuple(before.shape)}."
    moved = (before != after).any(-1).nonzero()[:, 1].tolist()
    return None if moved == [2] else f"Changing a pixel of patch 2 changed the patches {moved}."


EXERCISE = Exercise(
    title="An image is a sentence of patches",
    what="""Write `patchify(images, size)`: cut each image (a float tensor) into squares of `size` by `size` pixels
and lay each square out as one vector. It helps to see the images as (B, C, rows, size, columns, size). Patches go row
by row, left to right; inside a vector come all pixels of channel 0, row by row, then those of channel 1, and so on.
Height and width are multiples of `size`. The images may be a transposed view of others, for which `.view` fails.""",
    why="After this step, an image is a sequence of vectors like any other.",
    difficulty=3,
    minutes=12,
    reference=patchify,
    model=_model,
    misconceptions=misconceptions("""
reshape-only (cut="reshape"): only reshapes, so that a patch is a run of neighbouring rows
    In memory, which pixel follows the last one of a patch's first row?
column-by-column (order="columns"): puts the patches in order column by column
    Which patch stands second: the one to the right of the first, or the one below it?
bottom-up (order="backwards"): starts with the bottom row of patches
    Where does row 0 of an image lie, and which patch holds it?
channels-last (inside="channels-last"): puts the channels of a pixel side by side in the vector
    In the weights (out, C, size, size) of a convolution, which axis changes fastest?
channels-apart (inside="channels-apart"): makes a patch of each channel by itself
    How many patches has an image of 4 by 6 pixels and 3 channels with size 2?
pixels-transposed (pixels="columns"): reads the pixels of a patch column by column
    Which pixel of the patch comes second in the vector?
pixels-dealt-out (cut="dealt"): splits the axes the wrong way round, so that a patch collects pixels from all over the
        image
    When height is split in two axes, which of them moves from one pixel to the next?
channels-before-patches (inside="channel-by-channel"): goes through the patches of channel 0 first and fills the vectors
        in that order
    Which axis must stand directly before the pixels of one square when you reshape?
"""),
    cases=[
        Case("1 image of 2 by 4 pixels, 1 channel, patches of 2", _case(1, 1, 1, 2, 2, seed=1)),
        Case("1 image of 4 by 6 pixels, 1 channel, patches of 2", _case(1, 1, 2, 3, 2, seed=6)),
        Case("2 images of 4 by 6 pixels, 3 channels, patches of 2", _case(2, 3, 2, 3, 2, seed=11)),
        Case("2 images of 9 by 6 pixels, 2 channels, patches of 3", _case(2, 2, 3, 2, 3, seed=21)),
        Case("patches of one pixel", _case(2, 3, 4, 5, 1, seed=31)),
        Case("images that are not contiguous in memory", _strided),
        Case("float64", _case(1, 3, 2, 3, 2, seed=61, dtype=torch.float64)),
    ],
    properties=[Property("A pixel belongs to exactly one patch.", _one_pixel_one_patch)],
    alternatives=[
        Alternative("with F.unfold", _with_unfold),
        Alternative("patch by patch", _with_loops),
        Alternative("with a convolution whose weights are the identity", _with_convolution),
        Alternative("the course's own function", _with_course),
    ],
    gradients=False,
    hints=(
        "Height is made of rows of patches and of rows of pixels in a patch: which of the two counts faster?",
        "Three steps: split height and width into two axes each, move the two axes of patches to the front, join.",
        """B, C, height, width = images.shape
cut = images.reshape(B, C, height // size, size, width // size, size)
return cut.permute(____).reshape(B, -1, C * size * size)""",
    ),
    sample=_sample,
    tries=("float64", "float16", "bfloat16"),
)
