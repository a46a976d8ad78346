"""`python -m proteinlm`: the command line."""

import sys

from proteinlm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
