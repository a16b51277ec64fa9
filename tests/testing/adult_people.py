"""Two people of UCI's Adult, in files as the published ones."""

import tasks
from tasks import adult
from tasks.task import DataOptions

JANE = (
    "41, State-gov, 77516, Doctorate, 16, Never-married, Prof-specialty, "
    "Not-in-family, White, Female, 2174, 0, 40, United-States, >50K"
)
JOHN = (
    "25, ?, 226802, 11th, 7, Divorced, ?, Own-child, Black, Male, 0, 0, 40, "
    "Holand-Netherlands, <=50K"
)


def load(folder, data="auto", seed=0, **options):
    return tasks.load_task(
        "adult",
        adult.AdultOptions(**options),
        DataOptions(data=data, cache_dir=str(folder), seed=seed),
    )


def write(folder, train=(JANE, JOHN), test=(f"{JANE}.", f"{JOHN}.")):
    (folder / "adult.data").write_text("\n".join(train) + "\n\n")
    lines = ("|1x3 Cross validator", *test)
    (folder / "adult.test").write_text("\n".join(lines) + "\n\n")
    return folder
