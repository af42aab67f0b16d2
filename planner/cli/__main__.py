"""`python -m zipplan.planner.cli`, for where the console script is not on the path."""

from zipplan.planner.cli import main

if __name__ == "__main__":
    main()
