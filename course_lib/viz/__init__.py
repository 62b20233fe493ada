"""Figures, explorers and live widgets. They take tensors and plain Python values, never a model.

Nothing heavy is imported until a name is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_lib.viz.display import show
    from course_lib.viz.explorer import Explorer
    from course_lib.viz.explorers.attention import AttentionExplorer
    from course_lib.viz.explorers.cost import CostExplorer
    from course_lib.viz.explorers.decoding import DecodingExplorer
    from course_lib.viz.explorers.heads import HeadExplorer
    from course_lib.viz.explorers.mask import MaskComposer
    from course_lib.viz.explorers.pattern import PatternExplorer
    from course_lib.viz.explorers.position import PositionExplorer
    from course_lib.viz.explorers.product import ProductExplorer
    from course_lib.viz.explorers.sampling import SamplingExplorer
    from course_lib.viz.explorers.schedule import ScheduleExplorer
    from course_lib.viz.explorers.stream import StreamExplorer
    from course_lib.viz.figures import attention_map, attention_steps, line_labels, shape_badge
    from course_lib.viz.style import palette
    from course_lib.viz.widgets import live

_HOME = {
    "AttentionExplorer": "explorers.attention",
    "CostExplorer": "explorers.cost",
    "DecodingExplorer": "explorers.decoding",
    "Explorer": "explorer",
    "HeadExplorer": "explorers.heads",
    "MaskComposer": "explorers.mask",
    "PatternExplorer": "explorers.pattern",
    "PositionExplorer": "explorers.position",
    "ProductExplorer": "explorers.product",
    "SamplingExplorer": "explorers.sampling",
    "ScheduleExplorer": "explorers.schedule",
    "StreamExplorer": "explorers.stream",
    "attention_map": "figures",
    "attention_steps": "figures",
    "line_labels": "figures",
    "live": "widgets",
    "palette": "style",
    "shape_badge": "figures",
    "show": "display",
}

__all__ = [
    "AttentionExplorer",
    "CostExplorer",
    "DecodingExplorer",
    "Explorer",
    "HeadExplorer",
    "MaskComposer",
    "PatternExplorer",
    "PositionExplorer",
    "ProductExplorer",
    "SamplingExplorer",
    "ScheduleExplorer",
    "StreamExplorer",
    "attention_map",
    "attention_steps",
    "line_labels",
    "live",
    "palette",
    "shape_badge",
    "show",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value  # the next use finds it at once
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
