"""What the paper claims, table by table, in its text or by the means in its tables.

Where it calls something best, the claim is put against one rival, mostly the runner-up in its own
table. `about` says
which of its data sets a claim is about: some are the opposite of each other.
"""

from against_paper import ACCURACY, ECE, LL, NLPD, RMSE, Claim

from bqnes_jax.studies.robustness import PAPER_SEVERITIES

SIZES = (3, 5, 10)
CIFAR100, IMAGENET = ("CIFAR-100",), ("ImageNet16-120",)
CELLS, SLICES = CIFAR100 + IMAGENET, ("CIFAR-10", "CIFAR-100")
_METRICS = {ACCURACY: "accuracy", ECE: "ECE", LL: "LL"}


def _beats(better, worse, metric, about, sizes=SIZES, strictly=True, severity=None):
    relation = "beats" if strictly else "is not worse than"
    under = "" if severity is None else f", severity {severity}"
    heading = "" if severity is None else f"severity {severity}: "

    def row(name: str, size: int) -> str:
        return f"{heading}{name}, {1 if name == 'Best single' else size}"

    return tuple(
        Claim(
            f"{better} {relation} {worse} in {_METRICS[metric]}{under}, M = {size}",
            row(better, size),
            row(worse, size),
            metric,
            about,
            strictly,
        )
        for size in sizes
    )


def _not_worse(better, worse, metric, about, severity=None):
    return _beats(better, worse, metric, about, strictly=False, severity=severity)


CLAIMS: dict[str, tuple[Claim, ...]] = {
    "table1": (
        Claim("WSABI-L has a lower RMSE than a GP", "WSABI-L", "GP", RMSE, CELLS),
        Claim("WSABI-L has a lower NLPD than a GP", "WSABI-L", "GP", NLPD, CELLS),
    ),
    "table2": (
        *_beats("US", "RE", ACCURACY, IMAGENET),
        *_beats("US", "RE", LL, IMAGENET),
        *_beats("RE", "US", ACCURACY, CIFAR100),
        *_beats("RE", "US", LL, CIFAR100),
        *_beats("RE", "US", ECE, CELLS),
        *_beats("US", "EI", LL, CELLS),
    ),
    "table3": (
        *_beats("RS", "BS", ACCURACY, CELLS),
        *_beats("WS", "BS", ACCURACY, CELLS),
        *_beats("RS", "PR", ACCURACY, CELLS),
        *_beats("WS", "PR", ACCURACY, CELLS),
        *_beats("RS", "BS", LL, CELLS),
        *_beats("WS", "BS", LL, CELLS),
        *_beats("RS", "PR", LL, CELLS),
        *_beats("WS", "PR", LL, CELLS),
        *_beats("RS", "WS", ACCURACY, CELLS),
        *_beats("RS", "WS", LL, CELLS),
        *_not_worse("RS", "WS", ACCURACY, CELLS),
        *_not_worse("RS", "WS", LL, CELLS),
        *_beats("PR", "RS", ECE, CELLS, sizes=(10,)),
    ),
    "table4": (
        *_beats("NES-RE", "BQ-S", ACCURACY, CIFAR100),
        *_beats("NES-RE", "BQ-S", LL, CIFAR100),
        *_not_worse("BQ-S", "NES-RE", ACCURACY, IMAGENET),
        *_beats("BQ-S", "NES-RE", LL, IMAGENET),
        *_beats("BQ-S", "NES-RE", ECE, CELLS, sizes=(3, 5)),
        *_beats("BQ-S", "NES-RE", ECE, CIFAR100, sizes=(10,)),
        *_beats("BQ-R", "NES-RE", ECE, CELLS, sizes=(5, 10)),
        *_beats("BQ-R", "BQ-S", ECE, CELLS, sizes=(10,)),
        *_beats("BQ-S", "NES-BS", LL, CELLS),
        *_beats("BQ-S", "Random", LL, CELLS),
        *_beats("BQ-S", "Best single", LL, CELLS),
    ),
    "table5": (
        *_beats("BQ-S", "NES-RE", LL, SLICES),
        *_beats("BQ-S", "NES-RE", ECE, CIFAR100),
        *_not_worse("BQ-S", "NES-RE", ACCURACY, SLICES),
    ),
    "table6": tuple(
        claim
        for severity in PAPER_SEVERITIES
        for claim in (
            *_beats("BQ-S", "NES-RE", LL, SLICES, severity=severity),
            *_beats("BQ-S", "NES-RE", ECE, SLICES, severity=severity),
            *_not_worse("BQ-S", "NES-RE", ACCURACY, SLICES, severity=severity),
        )
    ),
}
