"""The measured roofline, the published peaks, and the share of them that was used."""

import pytest
import torch

from course_lib.scaling import PEAKS, Roofline, measure_roofline, mfu, published_peak


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_no_product_beats_the_roofline_by_much(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no cuda device here")
    roof = measure_roofline(device, seconds=0.05)
    assert 1e8 < roof.flops_per_second < 1e16
    assert 1e8 < roof.bytes_per_second < 1e14
    assert roof.ridge == roof.flops_per_second / roof.bytes_per_second


def test_work_takes_as_long_as_the_slower_of_both():
    roof = Roofline(flops_per_second=100.0, bytes_per_second=10.0)
    assert roof.ridge == 10
    assert roof.seconds(flops=1000, n_bytes=10) == 10
    assert roof.seconds(flops=10, n_bytes=1000) == 100


def test_published_peaks_by_the_name_that_torch_gives():
    assert published_peak("NVIDIA H100 80GB HBM3") == 989.4e12
    assert published_peak("NVIDIA A100-SXM4-80GB", "tf32") == 156e12
    assert published_peak("Tesla T4", "float16") == 65e12
    for name, peaks in PEAKS.items():
        assert peaks["float32"] <= peaks["float16"], name


def test_utilisation():
    assert mfu(flops=50.0, seconds=2.0, peak=100.0) == 0.25


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: published_peak("GeForce 256"), "device_name"),
        (lambda: published_peak("Tesla T4", "bfloat16"), "dtype"),
        (lambda: mfu(1.0, 0.0, 1.0), "seconds"),
        (lambda: measure_roofline(seconds=0), "seconds"),
    ],
)
def test_errors_name_the_argument(call, name):
    with pytest.raises(ValueError, match=f"^{name}:"):
        call()
