"""The command line: one function per command, which parses options and calls the package."""
