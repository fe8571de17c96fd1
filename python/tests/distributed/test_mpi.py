"""tilewise.distributed on communicators of mpi4py, on processes that mpiexec starts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("mpi_program.py")
# Open MPI refuses to run as root, and more ranks than cores, unless it is told to; others ignore these variables.
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


@pytest.mark.parametrize("size", [1, 3])
def test_program(size: int) -> None:
    try:
        import mpi4py.MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"mpi4py does not load: {error}")
    if (mpiexec := shutil.which("mpiexec")) is None:
        pytest.skip("mpiexec is not installed")
    command = [mpiexec, "-n", str(size), sys.executable, str(PROGRAM)]
    environment = {**os.environ, **ALLOWED}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0 and "all is well" in done.stdout, done.stdout + done.stderr
