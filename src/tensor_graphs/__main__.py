"""`python -m tensor_graphs`: entry point of the command line where the script is not installed."""

from .cli import main

if __name__ == "__main__":
    main()
