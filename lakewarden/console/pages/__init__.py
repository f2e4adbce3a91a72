"""The console's pages: each is a frozen value made from the database, shown as HTML and, with `.json` behind its address, as data."""

from lakewarden.console.pages.routes import error_page, router

__all__ = ["error_page", "router"]
