"""The one error that a user can mend, and the one way to leave early."""


class InputError(ValueError):
    """Something in the user's files, arguments or config is wrong.

    The message is one sentence or two that name the file, line, record or field and say what to do; the command line
    prints it alone and leaves with exit code 2.
    """


class Interrupted(Exception):  # noqa: N818 (an order to leave, not an error)
    """SIGTERM or Ctrl-C came; what was done is saved and the same command goes on from there.

    Attributes:
        step: the step that was saved.
        signal_number: the signal that came.
    """

    def __init__(self, step: int, signal_number: int):
        super().__init__(f"stopped at step {step} with a checkpoint; the same command goes on from there.")
        self.step, self.signal_number = step, signal_number
