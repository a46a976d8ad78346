"""The command line: one function a command, which parses options and calls the package."""
