"""What a Transformer costs, by formula and by measurement, and what it gains from size."""

from course_lib.scaling.activations import activation_bytes
from course_lib.scaling.fits import (
    BESIROGLU,
    HOFFMANN,
    LossSurface,
    Optimum,
    PowerLaw,
    PowerLawFit,
    compute_optimal,
    fit_loss_surface,
    fit_power_law,
)
from course_lib.scaling.flops import count_flops, six_n_d
from course_lib.scaling.memory import kv_cache_bytes, ring_all_reduce_bytes, training_memory
from course_lib.scaling.parameters import Architecture, count_parameters
from course_lib.scaling.readings import Reading, read_sweep
from course_lib.scaling.records import RECORDS, record
from course_lib.scaling.roofline import PEAKS, Roofline, measure_roofline, mfu, published_peak

__all__ = [
    "BESIROGLU",
    "HOFFMANN",
    "PEAKS",
    "RECORDS",
    "Architecture",
    "LossSurface",
    "Optimum",
    "PowerLaw",
    "PowerLawFit",
    "Reading",
    "Roofline",
    "activation_bytes",
    "compute_optimal",
    "count_flops",
    "count_parameters",
    "fit_loss_surface",
    "fit_power_law",
    "kv_cache_bytes",
    "measure_roofline",
    "mfu",
    "published_peak",
    "read_sweep",
    "record",
    "ring_all_reduce_bytes",
    "six_n_d",
    "training_memory",
]
