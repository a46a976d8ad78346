"""Output: console, files, folders, figures, pages, arrays and tables. A file appears only when it is complete."""
