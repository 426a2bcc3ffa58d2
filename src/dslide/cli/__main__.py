import sys

from dslide.cli import main

sys.exit(main())
