"""`python -m packhorse`: the console script, by the interpreter that is running."""

from packhorse.cli import main

main()
