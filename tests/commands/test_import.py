"""``import autoglobal`` without a usable OneFlow: one sentence with the cause and the line to type.

The texts of the errors are those that OneFlow's wheels were seen to raise.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import autoglobal
from autoglobal import OneFlowMissing
from autoglobal.commands.installation import diagnose

PLACEHOLDER = RuntimeError("This package is a placeholder. Please install oneflow following ...")
CUDNN = ImportError("libcudnn_cnn_infer.so.8: cannot open shared object file: No such file")
CUBLAS = ImportError("libcublas.so.11: cannot open shared object file: No such file or directory")
NUMPY = Exception(". Unable to import Numpy array, try to upgrade Numpy version!")
PROTOBUF = TypeError("Descriptors cannot be created directly.\nIf this call came from a _pb2.py")
NO_RICH = ModuleNotFoundError("No module named 'rich'", name="rich")
NO_PIL = ModuleNotFoundError("No module named 'PIL.Image'", name="PIL.Image")
STRANGE = ImportError("something else\non two lines")
ABSENT = ModuleNotFoundError("No module named 'oneflow'", name="oneflow")
HAVE = {"oneflow": "0.9.0", "numpy": "1.26.4"}
LINUX = "Linux x86_64"


@pytest.mark.parametrize(
    ("error", "found", "python", "system", "words"),
    [
        (ABSENT, {}, (3, 11), LINUX, ["3.11", "3.7 to 3.10", "3.9 or 3.10", "python3.10 -m venv"]),
        (ABSENT, {}, (3, 8), LINUX, ["Python 3.8", "3.9 or 3.10", "python3.10 -m venv"]),
        (ABSENT, {}, (3, 10), "Darwin arm64", ["Darwin arm64", f"of autoglobal on {LINUX}"]),
        (ABSENT, {}, (3, 10), "Linux aarch64", ["Linux aarch64", f"of autoglobal on {LINUX}"]),
        (ABSENT, {}, (3, 10), LINUX, ["not installed", "'oneflow>=0.9,<1' 'numpy<2'"]),
        (PLACEHOLDER, {"oneflow": "0.7.0"}, (3, 11), LINUX, ["0.7.0", "stub", "3.7 to 3.10"]),
        (None, {"oneflow": "0.7.0"}, (3, 10), LINUX, ["0.7.0", "stub", "'oneflow>=0.9,<1'"]),
        (
            None,
            HAVE,
            (3, 10),
            LINUX,
            ["/home/me/oneflow is imported in the place", "cd"],
        ),
        (CUDNN, HAVE, (3, 10), LINUX, ["libcudnn", "not bring", "'nvidia-cudnn-cu11>=8.5,<9'"]),
        (CUDNN, {**HAVE, "libcudnn": "9.1.0"}, (3, 10), LINUX, ["9.1.0 is installed, another"]),
        (CUDNN, {**HAVE, "libcudnn": "8.9.6"}, (3, 10), LINUX, ["is not there", "--force-reinst"]),
        (CUBLAS, HAVE, (3, 9), LINUX, ["libcublas", "'nvidia-cublas-cu11>=11,<12'"]),
        (NUMPY, {**HAVE, "numpy": "2.2.6"}, (3, 10), LINUX, ["numpy 2.2.6", "'numpy<2'"]),
        (NUMPY, {"oneflow": "0.9.0"}, (3, 10), LINUX, ["no numpy is installed", "'numpy<2'"]),
        (PROTOBUF, HAVE, (3, 10), LINUX, ["protobuf 3", "'protobuf<4'"]),
        (NO_RICH, HAVE, (3, 10), LINUX, ["needs the module rich", "install rich"]),
        (NO_PIL, HAVE, (3, 10), LINUX, ["needs the module PIL", "install pillow"]),
        (STRANGE, HAVE, (3, 10), LINUX, ["0.9.0", "ImportError: something else)", "'numpy<2'"]),
    ],
)
def test_the_cause_and_the_cure_are_named(error, found, python, system, words):
    sentence = str(diagnose(error, found, "/home/me/oneflow", python, system))
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("raise RuntimeError('a placeholder')", ["stub", "-m pip install 'oneflow>=0.9,<1'"]),
        ("", ["/oneflow/__init__.py is imported in the place of OneFlow 0.", "type: unset PYTHON"]),
    ],
)
def test_another_package_in_the_place_of_oneflow_is_told(tmp_path, content, words):
    (tmp_path / "oneflow").mkdir()
    (tmp_path / "oneflow" / "__init__.py").write_text(content)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "try:\n    import autoglobal\n"
        "except ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.startswith(f"{OneFlowMissing.__name__} autoglobal cannot import OneFlow. ")
    for word in words:
        assert word in run.stdout


@pytest.mark.ranks(1)
def test_a_wrapt_that_is_too_old_is_told():
    program = (
        "import wrapt; wrapt.__version__ = '1.14.1'\n"
        "try:\n    import autoglobal\n"
        "except ImportError as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.startswith("autoglobal needs wrapt 2.5 or later, and this is 1.14.1; type: ")
    assert run.stdout.endswith(" -m pip install 'wrapt>=2.5'\n")


@pytest.mark.ranks(1)
def test_a_program_that_python_m_starts_gets_the_error_too(tmp_path):
    """Only on the way to a module of autoglobal's own does the package import nothing."""
    (tmp_path / "oneflow.py").write_text("raise ModuleNotFoundError(name='oneflow')")
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__init__.py").write_text("import autoglobal")
    (tmp_path / "program" / "__main__.py").write_text("")
    run = subprocess.run(
        [sys.executable, "-m", "program"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert "OneFlowMissing: autoglobal cannot import OneFlow" in run.stderr


def test_the_public_names_alone_are_offered():
    """To ``from autoglobal import <TAB>``, which has no use for packages such as ``commands``."""
    assert dir(autoglobal) == sorted(autoglobal.__all__)
    assert "commands" in vars(autoglobal)
