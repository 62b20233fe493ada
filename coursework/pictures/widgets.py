"""Controls that ask the running kernel for what a page alone cannot compute: samples, training, the reader's prompt."""

import contextlib
import html
import io
from collections.abc import Callable
from typing import Any

import ipywidgets
import matplotlib.pyplot as plt
from IPython.display import display
from ipywidgets.widgets.interaction import interactive
from matplotlib.figure import Figure

from coursework.pictures.display import Picture, check_text, figure_tag, render

Text = str | Callable[..., str]


def live(fn: Callable[..., Figure], *, alt: Text, caption: Text, **controls: Any) -> None:
    """Show fn's figure for the default values, and under it controls that draw it again for other values.

    The first figure needs no front end: it is what a saved, printed or exported notebook shows. A later one appears
    under the controls when a control is let go; whatever `fn` prints or raises there is shown in its place.

    Args:
        fn: takes the controls' values by keyword and returns a matplotlib figure.
        alt: alternative text of the figure, at least 40 characters, or a function of the same values that gives it.
        caption: the conclusion, or a function of the same values that gives it.
        controls: by name, an ipywidgets control or its abbreviation: (min, max, step) a slider, a list a choice,
            True or False a checkbox, a text a text field, a number a slider around it.

    Raises:
        ValueError: no control, or an `alt` or `caption` that `show` would refuse.
        TypeError: a control that cannot be made, or an `fn` that does not return a figure. What `fn` raises for the
            default values is raised.
    """
    if not controls:
        raise ValueError("controls: expected at least one, for instance temperature=(0.1, 2.0, 0.1)")
    panel = {name: _control(name, setting) for name, setting in controls.items()}
    first, height = _draw(fn, alt, caption, panel)
    hint = "Move a control to draw the figure again here."
    note, result = ipywidgets.HTML(hint), ipywidgets.HTML()
    result.layout = ipywidgets.Layout(overflow="auto")

    def redraw(change: Any = None) -> None:
        note.value = "Computing …"
        result.layout.height = f"{height + 90}px"  # from here on, so that nothing is blank above a first figure
        result.value = _answer(fn, alt, caption, panel)
        note.value = hint

    for control in panel.values():
        control.observe(redraw, names="value")
    display(_First(first.data, first.width, first.alt, first.caption))
    display(_Controls(ipywidgets.VBox([*panel.values(), note, result]), list(panel)))


# JupyterLab takes arrows and letters from ipywidgets' controls, and moves or deletes cells: this mark keeps it off.
_KEEP_KEYS = """<script>(() => {
const area = document.currentScript && document.currentScript.closest(".jp-OutputArea");
if (!area) return;
const mark = () => area.querySelectorAll(".jupyter-widgets :is(input, select, textarea, button, [tabindex])")
  .forEach((node) => node.setAttribute("data-lm-suppress-shortcuts", "true"));
new MutationObserver(mark).observe(area, { childList: true, subtree: true });
mark();
})()</script>"""


class _First(Picture):
    """The figure that needs no front end, and what the controls below it need from the page."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = super()._repr_mimebundle_()
        return bundle | {"text/html": bundle["text/html"] + _KEEP_KEYS}


class _Controls:
    """The widgets with a plain text that is the same at each run, where ipywidgets' own depends on its version."""

    def __init__(self, box: Any, names: list[str]) -> None:
        self.box, self.names = box, names

    def __repr__(self) -> str:
        return f"Controls, in use where a kernel runs: {', '.join(self.names)}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        # ipywidgets 7, which Colab has, would display the box in place of returning this.
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        return {"application/vnd.jupyter.widget-view+json": view, "text/plain": repr(self)}


def _control(name: str, setting: Any) -> Any:
    try:
        control = interactive.widget_from_abbrev(setting)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected a control or its abbreviation, got {setting!r} ({error})") from None
    if control is None:
        raise TypeError(f"{name}: expected a control or its abbreviation, got {setting!r}")
    control.description = name.replace("_", " ")
    control.style.description_width = "initial"
    if control.has_trait("continuous_update"):
        control.continuous_update = False  # one drawing when let go, not one a pixel
    return control


def _draw(fn: Callable[..., Figure], alt: Text, caption: Text, panel: dict[str, Any]) -> tuple[Picture, int]:
    """Return the picture for the values that the controls have now, and its height in pixels as shown."""
    values = {name: control.value for name, control in panel.items()}
    texts = [text(**values) if callable(text) else text for text in (alt, caption)]
    check_text(*texts)
    figure = fn(**values)
    if not isinstance(figure, Figure):
        raise TypeError(f"fn: expected it to return a matplotlib figure, got {type(figure).__name__}")
    try:
        return render(figure, alt=texts[0], caption=texts[1]), round(figure.get_figheight() * 96)
    finally:
        plt.close(figure)


def _answer(fn: Callable[..., Figure], alt: Text, caption: Text, panel: dict[str, Any]) -> str:
    """Return the HTML of a new figure with what was printed, or of the error."""
    values = ", ".join(f"{name} = {control.value!r}" for name, control in panel.items())
    if not callable(alt):  # a fixed text describes the first figure only
        alt = f"The figure drawn again for {values}. At first it showed: {alt}"
    if not callable(caption):
        caption = f"For {values}."
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            picture, _ = _draw(fn, alt, caption, panel)
            answer = figure_tag(picture)
        except Exception as error:  # shown to the reader, who caused it by a control
            answer = f"<pre role='alert'>{html.escape(f'{type(error).__name__}: {error}')}</pre>"
    if printed.getvalue().strip():
        answer += f"<pre>{html.escape(printed.getvalue())}</pre>"
    return answer
