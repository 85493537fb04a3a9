"""`python -m tpdpdash …` is the console script."""

from tpdpdash.cli import main

main()
