"""What came out of a run, for people: a table, figures, and one HTML page with both.

write_report(run)  # report.html in the directory of the run, and its figures in plots/
"""

from bqnes_jax.report.page import write_report
from bqnes_jax.report.selections import rehearse
from bqnes_jax.report.surrogate import predict_each, rank_correlation
from bqnes_jax.report.table import Row, row_of, summary, warnings_of
from bqnes_jax.report.worth import kernel_coordinates

__all__ = [
    "Row",
    "kernel_coordinates",
    "predict_each",
    "rank_correlation",
    "rehearse",
    "row_of",
    "summary",
    "warnings_of",
    "write_report",
]
