"""Put the native library into the package: what pyproject.toml cannot say.

The library is plain C++ without the headers of Python or torch, so one wheel serves every version
of Python. Without a compiler the installation succeeds without it.
"""

import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = "src/bitcycle/native"
library = runpy.run_path(f"{FOLDER}/build.py", run_name="build")


class BuildLibrary(build_ext):
    """Builds a shared library that ctypes loads, not a module of Python."""

    def run(self) -> None:
        """Build into the wheel, or beside the sources if it is an editable installation."""
        folder = Path(FOLDER) if self.inplace else Path(self.build_lib, "bitcycle", "native")
        if reason := library["build"](folder.resolve()):
            print(f"bitcycle: installed without its native library: {reason}", file=sys.stderr)

    def get_ext_filename(self, fullname: str) -> str:
        """The plain name, whatever Python builds it."""
        return fullname.replace(".", "/") + ".so"


class PlatformWheel(bdist_wheel):
    """A wheel of this platform, for any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-linux_x86_64."""
        return ("py3", "none", super().get_tag()[2])


setup(
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
    ext_modules=[
        Extension(
            "bitcycle.native.libbitcycle",
            [f"{FOLDER}/{path.name}" for path in library["find_sources"]()],
            optional=True,
        )
    ],
)
