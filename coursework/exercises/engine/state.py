"""What an answer may change beyond its result, put back after each call."""

import contextlib
import math
import os
import random
import sys
import types
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

_LIBRARIES: tuple[types.ModuleType | type, ...] = (torch, torch.Tensor, F, torch.nn, torch.linalg, np, math)


@contextlib.contextmanager
def same_generators() -> Iterator[None]:
    """Leave the random generators as they were."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """Under the settings of the course, whatever the notebook has set: float32, the CPU, gradients, nothing cast."""
    dtype = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


@contextlib.contextmanager
def same_state() -> Iterator[None]:
    """Leave the settings of torch, NumPy and Python, their functions, the environment and the folder as they were."""
    dtype, device, threads = torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()
    gradients, anomaly = torch.is_grad_enabled(), torch.is_anomaly_enabled()
    checks_nan = torch.is_anomaly_check_nan_enabled()
    deterministic = _deterministic()
    numpy_errors, depth = np.geterr(), sys.getrecursionlimit()
    environment, folder, modes = dict(os.environ), _folder(), torch._C._len_torch_function_stack()
    libraries = [dict(vars(library)) for library in _LIBRARIES]
    try:
        yield
    finally:
        with torch._C.DisableTorchFunction():  # a mode that the answer left would see what is done here
            for library, before in zip(_LIBRARIES, libraries, strict=True):
                _put_back(library, before)
            torch.set_default_dtype(dtype)
            if torch.get_default_device() != device:
                # None is the CPU, too, without the mode that intercepts every call, which torch.compile cannot follow.
                torch.set_default_device(None if device.type == "cpu" else device)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            torch.set_grad_enabled(gradients)
            torch.autograd.set_detect_anomaly(anomaly, checks_nan)
            if _deterministic() != deterministic:  # setting it loads torch's compiler, which takes a second
                torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
            np.seterr(**numpy_errors)
            sys.setrecursionlimit(depth)
            if os.environ != environment:
                os.environ.clear()
                os.environ.update(environment)
            if folder is not None and _folder() != folder:
                with contextlib.suppress(OSError):
                    os.chdir(folder)
            while torch._C._len_torch_function_stack() > modes:
                torch._C._pop_torch_function_stack()


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _put_back(library: types.ModuleType | type, before: dict[str, object]) -> None:
    """Undo what was set over a library's names, such as `torch.softmax = mine`."""
    now = dict(vars(library))
    for name, value in before.items():
        if now.pop(name, before) is not value:
            setattr(library, name, value)
    if isinstance(library, type):  # a method set over an inherited one; a module may gain names by an import
        for name in now:
            delattr(library, name)
