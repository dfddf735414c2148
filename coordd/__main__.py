"""python -m coordd: the same as the program coordd."""

from coordd.cli.coordd import main

if __name__ == "__main__":
    main()
