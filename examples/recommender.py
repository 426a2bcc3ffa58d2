"""Recommendations from a CSV of ratings: tested on the last item of each user, written for all users, items alike.

python examples/recommender.py
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import dslide
from dslide.cli import main as command

GENRES = ("crime", "drama", "space", "western")


def write_ratings(path: Path, users: int) -> None:
    """Users who like one genre, with times."""
    random.seed(1)
    with path.open("w") as file:
        file.write("user_id,movie_id,rating,timestamp\n")
        for user in range(users):
            genre = random.choice(GENRES)
            for time, movie in enumerate(random.sample(range(15), 8)):
                file.write(f"user{user},{genre}-{movie},{random.randint(3, 5)},{time}\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ratings, run, best = (str(Path(folder) / name) for name in ("ratings.csv", "run", "best.tsv"))
        write_ratings(Path(ratings), users=400)
        code = command(
            [
                "train",
                ratings,
                "--split",
                "last",
                "--out",
                run,
                "--recommend",
                best,
                "--k",
                "5",
                "--epochs",
                "3",
                "--quiet",
            ]
        )
        assert code == 0
        print("written for the first user:", Path(best).read_text().splitlines()[0])
        new_user = next(dslide.predict(run, [["space-1", "space-2"]], k=3))
        print("for a new user who saw two space films:", ", ".join(new_user.names))
        command(["neighbours", run, "western-3", "--k", "3"])


if __name__ == "__main__":
    main()
