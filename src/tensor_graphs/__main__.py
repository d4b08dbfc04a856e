"""`python -m tensor_graphs`: runs the command line, as the installed script `tensor-graphs` does."""

from .cli import main

if __name__ == "__main__":
    main()
