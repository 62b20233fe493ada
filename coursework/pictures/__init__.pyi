from . import drawings as drawings
from .display import show as show
from .figures import attention_map as attention_map
from .figures import colour_bar as colour_bar
from .figures import reading_rows as reading_rows
from .style import palette as palette
from .widgets import live as live
