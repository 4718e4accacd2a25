"""`python -m dreamgym`: the same program as `dreamgym`."""

from dreamgym.cli import main

main()
