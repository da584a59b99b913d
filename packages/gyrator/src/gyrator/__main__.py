"""`python -m gyrator`: the command line."""

import sys

from gyrator.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
