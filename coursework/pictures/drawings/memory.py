"""The drawing of the lab on a memory of fixed size."""

from coursework.pictures.drawing import Drawing
from coursework.pictures.style import palette

GREY = "#555555"
BAD = "#C22F2F"


def delta_write() -> Drawing:
    """Ada moves from room 5 to room 7: what a sum writes, and what the delta rule writes."""
    picture = Drawing(
        276,
        alt="A state with the numbers 5 and 3: Ada is in room 5, Ben in room 3. The news is key 1, 0 with value 7. "
        "A sum adds 7 and gets 12 and 3. The delta rule first reads 5, finds that 2 is missing, adds 2, and gets "
        "7 and 3.",
        caption="The sum adds the new room to the old one. The delta rule reads first and writes only the difference.",
    )
    picture.text((64, 92), "state", bold=True)
    picture.numbers((18, 110), (("5", "3"),), cell=(46, 34))
    picture.text((41, 162), "Ada", size=15, colour=GREY)
    picture.text((87, 162), "Ben", size=15, colour=GREY)
    picture.text((72, 218), "news: Ada, 7", size=16, bold=True)
    picture.text((72, 242), "key 1, 0", size=15, colour=palette.key)
    for y, end, name in ((66, 146, "sum"), (206, 140, "delta rule")):
        picture.text((296, y - 46), name, bold=True)
        picture.line([(116, 127), (end, y)])
    picture.box((306, 66), (312, 40), "write 7 · (1, 0)", colour=palette.value)
    picture.box((202, 206), (116, 62), ["read:", "it says 5"], colour=palette.query)
    picture.line([(261, 206), (288, 206)])
    picture.box((378, 206), (168, 62), ["7 − 5 = 2:", "write 2 · (1, 0)"], colour=palette.value)
    for y, said in ((66, "12"), (206, "7")):
        picture.line([(464, y), (490, y)])
        picture.numbers((496, y - 17), ((said, "3"),), cell=(46, 34))
    picture.text((536, 102), "no such room", size=15, colour=BAD)
    picture.text((536, 242), "Ada is in 7", size=15, colour=GREY)
    return picture
