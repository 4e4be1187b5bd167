"""Build the native library with the system's compiler: one file for every processor.

It is plain C++ without the headers of Python or torch. Without a compiler the installation succeeds
without it.
"""

import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = "src/bitcycle/native"
FLAGS = [
    "-O3",
    "-g0",
    "-std=c++17",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # codes are equal to the bit on every processor
]


class BuildLibrary(build_ext):
    """Builds a shared library with a plain name, not a Python module."""

    def get_ext_filename(self, fullname: str) -> str:
        """libbitcycle.so, whatever Python builds it."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Return no module initializer: there is none."""
        return []


setup(
    cmdclass={"build_ext": BuildLibrary},
    ext_modules=[]
    if sys.platform == "win32"
    else [
        Extension(
            "bitcycle.native.libbitcycle",
            sorted(glob(f"{FOLDER}/*.cpp")),
            depends=glob(f"{FOLDER}/*.h"),
            extra_compile_args=FLAGS,
            libraries=["dl"],
            language="c++",
            optional=True,
        )
    ],
)
