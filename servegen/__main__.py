"""``python -m servegen``: the same as the command ``servegen``."""

import sys

from servegen.cli import main

if __name__ == "__main__":
    sys.exit(main())
