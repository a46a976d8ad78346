"""How anything is written: console, files, folders, figures, pages, arrays; each file whole or not at all."""
