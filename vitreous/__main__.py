"""`python -m vitreous` is the command `vitreous`."""

from vitreous.cli.main import run

if __name__ == "__main__":
    run()
