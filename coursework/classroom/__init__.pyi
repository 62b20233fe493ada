from .grades import read_roster as read_roster
from .grades import unknown as unknown
from .judging import judge_class as judge_class
from .page import files as files
from .summary import load as load
from .tables import print_class as print_class
from .tables import print_misconceptions as print_misconceptions
from .workers import Limits as Limits
