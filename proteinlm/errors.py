"""The one error that a user can mend."""


class InputError(ValueError):
    """Something in the user's files, arguments or config is wrong.

    The message is one sentence or two that name the file, line, record or field and say what to do; the command line
    prints it alone and leaves with exit code 2.
    """
