"""`python -m gruppo`: the command line."""

from gruppo.cli import main

main()
