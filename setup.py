"""Package metadata, and the protobuf code that is generated from proto/ at build."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
PROTO_ROOT = ROOT / "proto"
SOURCE_ROOT = ROOT / "daemon"


class BuildProto(Command):
    """Generates messages, service stubs and their type stubs under daemon/orin_rerank/v1/."""

    description = "generate Python code from proto/"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None:
        """Has no options."""

    def finalize_options(self) -> None:
        """Has no options."""

    def run(self) -> None:
        """Runs protoc as grpcio-tools carries it."""
        protos = sorted(str(p) for p in (PROTO_ROOT / "orin_rerank" / "v1").glob("*.proto"))
        subprocess.run(
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                f"--proto_path={PROTO_ROOT}",
                f"--python_out={SOURCE_ROOT}",
                f"--grpc_python_out={SOURCE_ROOT}",
                f"--mypy_out={SOURCE_ROOT}",
                f"--mypy_grpc_out={SOURCE_ROOT}",
                *protos,
            ],
            check=True,
        )


class BuildPyWithProto(build_py):
    """Generates the protobuf code before the modules are collected."""

    def run(self) -> None:
        self.run_command("build_proto")
        super().run()


class EditableWithProto(editable_wheel):
    """The same for an editable installation."""

    def run(self) -> None:
        self.run_command("build_proto")
        super().run()


def version() -> str:
    """The version that the package states; read as text, since the package may not be importable yet."""
    text = (SOURCE_ROOT / "orin_rerank" / "__init__.py").read_text()
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert match is not None, "daemon/orin_rerank/__init__.py states no version"
    return match.group(1)


def make_generated_package() -> None:
    """Makes the package that `build_proto` fills, early: setuptools lists packages before it builds anything."""
    target = SOURCE_ROOT / "orin_rerank" / "v1"
    target.mkdir(exist_ok=True)
    (target / "__init__.py").write_text('"""Generated from proto/orin_rerank/v1/ at build; do not edit."""\n')


make_generated_package()
setup(
    name="orin-rerank",
    version=version(),
    description="Turns an NVIDIA Jetson Orin into a multimodal reranking appliance",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.13",
    package_dir={"": "daemon"},
    packages=find_packages("daemon"),
    package_data={"orin_rerank": ["py.typed", "v1/*.pyi"]},
    install_requires=[
        "googleapis-common-protos>=1.63",
        "grpcio>=1.85,<2",
        "grpcio-health-checking>=1.85,<2",
        "grpcio-reflection>=1.85,<2",
        "grpcio-status>=1.85,<2",
        "numpy>=1.26",
        "onnx>=1.18",
        "onnxruntime>=1.23",
        "pillow>=11",
        "protobuf>=7.35.1,<8",
        "pydantic>=2.10",
        "rich>=13",
        "tokenizers>=0.21",
        'tomli>=2.0; python_version < "3.11"',
        # From here on typer has its errors in a module of its own, which `cli.main` needs.
        "typer>=0.29",
    ],
    extras_require={
        # Reads a checkpoint's configuration for `orin-rerank export`; the daemon itself does not need it.
        "export": ["transformers>=4.57"],
        "test": [
            "bm25s>=0.3",
            "buf-bin>=1.75",
            "hypothesis>=6.100",
            "import-linter>=2.3",
            "mypy>=1.18",
            "pytest>=8.3",
            "pytest-asyncio>=0.24",
            "pytest-xdist>=3.6",
            "ruff>=0.14",
            "transformers>=4.57",
            "types-grpcio>=1.0",
            "types-grpcio-health-checking>=1.0",
            "types-grpcio-reflection>=1.0",
            "types-grpcio-status>=1.0",
            "types-protobuf>=6",
            "types-setuptools>=77",
        ],
        # The GPU: page-locked memory, streams and the context. TensorRT comes with JetPack, not from here.
        "jetson": ["pycuda>=2026.1"],
        # Asks the service of jetson-stats, where it runs, for what a board's files do not say. AGPL-3.0: see NOTICE.
        "jtop": ["jetson-stats>=4.3"],
        # A discrete NVIDIA GPU. onnxruntime and onnxruntime-gpu are one module: see docs/device-figures.md.
        "cuda": ["onnxruntime-gpu>=1.31", "pycuda>=2026.1"],
        # NVIDIA's compiler, which needs no GPU, to compile every graph in tests; on other machines those are skipped.
        "compile-test": ['tensorrt-rtx-cu13==1.7.1.116; sys_platform == "linux" and platform_machine == "x86_64"'],
        # The reference implementations, to compare with; never at run time.
        "oracle": ["qwen-vl-utils>=0.0.14", "torch>=2.9", "transformers>=4.57"],
    },
    entry_points={"console_scripts": ["orin-rerank = orin_rerank.cli.main:main"]},
    cmdclass={
        "build_proto": BuildProto,
        "build_py": BuildPyWithProto,
        "editable_wheel": EditableWithProto,
        "build": build,
    },
)
