"""`python -P -m fleet.cli`: the command where its script is not on the path."""

from fleet.cli.app import main

if __name__ == "__main__":
    main()
