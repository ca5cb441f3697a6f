"""The tools of a harness: files inside the working directory, and nothing outside it."""

from handrail.builtins.edit_file import EditFileTool
from handrail.builtins.list_files import ListFilesTool
from handrail.builtins.read_file import ReadFileTool
from handrail.builtins.search_text import SearchTextTool
from handrail.builtins.write_file import WriteFileTool

__all__ = ["EditFileTool", "ListFilesTool", "ReadFileTool", "SearchTextTool", "WriteFileTool"]
