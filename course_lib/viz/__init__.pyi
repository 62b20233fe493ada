from . import drawings as drawings
from .display import show as show
from .figures import attention_map as attention_map
from .figures import attention_steps as attention_steps
from .figures import shape_badge as shape_badge
from .style import palette as palette
from .widgets import live as live
