"""`python -m notifyq` is the command `notifyq`."""

from notifyq.cli.main import main

if __name__ == "__main__":
    main()
