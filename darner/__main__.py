"""``python -m darner`` is the command ``darner``."""

import sys

from .cli import main

sys.exit(main())
