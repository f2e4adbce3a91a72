"""`python -m lakewarden.cli`"""

import sys

from lakewarden.cli import main

sys.exit(main())
