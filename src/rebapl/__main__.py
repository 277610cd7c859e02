"""The command line as `python -m rebapl`."""

from rebapl.cli import main

if __name__ == "__main__":
    main()
