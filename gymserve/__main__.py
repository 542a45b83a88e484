"""``python -m gymserve``."""

from gymserve.cli import main

if __name__ == "__main__":
    main()
