"""`python -m tensor_graphs`: the command line where no script was installed."""

from .cli import main

if __name__ == "__main__":
    main()
