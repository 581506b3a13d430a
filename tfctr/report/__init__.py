"""What a training tells of itself, and how people see it: a page, a live view."""

from tfctr.report.events import EventFile, EventReader
from tfctr.report.history import History
from tfctr.report.page import write_page

__all__ = ["EventFile", "EventReader", "History", "write_page"]
