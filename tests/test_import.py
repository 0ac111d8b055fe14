"""``import autoglobal`` without a usable OneFlow: one sentence with the cause and the line to type.

The texts of the errors are those that OneFlow's wheels were seen to raise.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from autoglobal import OneFlowMissing
from autoglobal._oneflow import explain

PLACEHOLDER = RuntimeError("This package is a placeholder. Please install oneflow following ...")
CUDNN = ImportError("libcudnn_cnn_infer.so.8: cannot open shared object file: No such file")
CUBLAS = ImportError("libcublas.so.11: cannot open shared object file: No such file or directory")
NUMPY = Exception(". Unable to import Numpy array, try to upgrade Numpy version!")


@pytest.mark.parametrize(
    ("error", "oneflow", "numpy", "python", "words"),
    [
        (ModuleNotFoundError("oneflow"), None, None, (3, 11), ["3.11", "3.7 to 3.10", "[oneflow]"]),
        (ModuleNotFoundError("oneflow"), None, None, (3, 10), ["not installed", "[oneflow]"]),
        (PLACEHOLDER, "0.7.0", None, (3, 11), ["0.7.0", "stub", "3.7 to 3.10", "[oneflow]"]),
        (None, "0.7.0", None, (3, 10), ["0.7.0", "stub", "[oneflow]"]),
        (CUDNN, "0.9.0", "1.26.4", (3, 10), ["libcudnn", "'nvidia-cudnn-cu11>=8.5,<9'"]),
        (CUBLAS, "0.9.0", "1.26.4", (3, 9), ["libcublas", "'nvidia-cublas-cu11>=11,<12'"]),
        (NUMPY, "0.9.0", "2.2.6", (3, 10), ["numpy 2.2.6", "'numpy<2'"]),
        (ImportError("something else"), "0.9.0", "1.26.4", (3, 10), ["0.9.0", "something else"]),
    ],
)
def test_the_sentence_names_the_cause_and_the_cure(error, oneflow, numpy, python, words):
    sentence = explain(error, oneflow, numpy, python)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


def test_a_stub_in_the_place_of_oneflow_is_told(tmp_path):
    (tmp_path / "oneflow").mkdir()
    (tmp_path / "oneflow" / "__init__.py").write_text("raise RuntimeError('a placeholder')")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "try:\n    import autoglobal\n"
        "except ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.startswith(OneFlowMissing.__name__)
    assert "stub" in run.stdout
    assert "[oneflow]" in run.stdout
