"""The version of vitreous, which every file and page that it writes carries."""

__version__ = "0.1.0"
