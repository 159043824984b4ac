"""Writes binding_names.json: what the Python modules of TensorRT's releases have, and how what is used is called.

The bindings are small wheels, the libraries beneath are gigabytes and want a GPU. But a module can be imported, and
asked for its classes and their members, over libraries that only have the dozen functions by which it enters them. So
such libraries are compiled, empty, for every release, and what Python sees is written down: all names, and of the
functions that the project calls the names of their arguments, which the bindings tell in each docstring's first line.

    python tests/engines/tensorrt/make_binding_names.py    # on Linux on x86-64, with pip and a C compiler
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

RELEASES = (
    *("10.3.0", "10.4.0", "10.5.0", "10.6.0", "10.7.0", "10.8.0.43", "10.9.0.34", "10.10.0.31", "10.11.0.33"),
    *("10.12.0.36", "10.13.3.9", "10.14.1.48.post1", "10.15.1.29", "10.16.1.11"),
    *("11.0.0.114", "11.1.0.106", "11.2.1.2", "11.3.0.99", "11.4.0.106"),
)
OUT = Path(__file__).with_name("binding_names.json")
STUBS = Path(__file__).parents[3] / "typings" / "tensorrt" / "__init__.pyi"

LIST_NAMES = """
import functools, inspect, json, sys, tensorrt_bindings

def names(owner, prefix=""):
    for name in dir(owner):
        if not name.startswith("_"):
            member = getattr(owner, name, None)
            yield prefix + name
            if inspect.isclass(member) and member is not owner and prefix.count(".") < 2:
                yield from names(member, prefix + name + ".")

def doc(name):
    return functools.reduce(lambda owner, part: getattr(owner, part, None), name.split("."), tensorrt_bindings).__doc__

used = json.loads(sys.argv[1])
print(json.dumps([sorted(set(names(tensorrt_bindings))), {name: doc(name) or "" for name in used}]))
"""


def functions_used() -> dict[str, list[str]]:
    """Of each function in the stubs its arguments, as `signatures_in` gives them."""
    found = {}
    for owner in ast.parse(STUBS.read_text()).body:
        for node in owner.body if isinstance(owner, ast.ClassDef) else ():
            if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                given = [argument.arg for argument in node.args.args[1:]]
                needed = len(given) - len(node.args.defaults)
                if node.name == "__init__" or not node.name.startswith("_"):
                    found[f"{owner.name}.{node.name}"] = given[:needed] + [f"{name}=" for name in given[needed:]]
    return found


def signatures_in(name: str, doc: str) -> list[list[str]]:
    """Arguments of each overload of a function, by its docstring; those with a default end with `=`."""
    found = []
    for line in re.findall(rf"^(?:\d+\. )?{name.rpartition('.')[2]}\((self: .*)\) -> ", doc, re.MULTILINE):
        plain, count = line, 1
        while count:  # types and defaults may hold commas
            plain, count = re.subn(r"\[[^\[\]]*\]|<[^<>]*>", "", plain)
        parts = plain.split(", ")[1:]
        found.append([part.partition(":")[0] + "=" * (" = " in part or part.endswith(" =")) for part in parts])
    return found


def run(*command: str | Path, **options: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, **options).stdout


def asked(release: str, folder: Path) -> tuple[set[str], dict[str, list[list[str]]]]:
    """All names of a release, and the signatures of the functions that are used."""
    run(*f"{sys.executable} -m pip download -q --no-deps -d".split(), folder, f"tensorrt-cu12-bindings=={release}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    module = folder / "tensorrt_bindings" / "tensorrt.so"
    undefined = re.findall(r"\bU (\w+)$", run("nm", "-D", "--undefined-only", module), re.MULTILINE)
    source = folder / "empty.c"
    source.write_text(
        "".join(f"long {name}(void) {{ return 0; }}\n" for name in undefined if not re.match("_?Py", name))
    )
    for library in set(re.findall(r"\[(libnv\w+\.so\.\d+)\]", run("readelf", "-d", module))):
        run("cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library}", "-o", folder / library, source)
    environment = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}
    used = json.dumps(list(functions_used()))
    names, docs = json.loads(run(sys.executable, "-c", LIST_NAMES, used, env=environment))
    return set(names), {name: signatures_in(name, doc) for name, doc in docs.items()}


def main() -> None:
    found: dict[str, set[str]] = {}
    signatures: dict[str, dict[str, str]] = {name: {} for name in functions_used()}
    for number, release in enumerate(RELEASES):
        with tempfile.TemporaryDirectory() as folder:
            found[release], called = asked(release, Path(folder))
        for name, overloads in called.items():
            for overload in dict.fromkeys(map(" ".join, overloads)):
                before = signatures[name].get(overload, "").ljust(number, "-")
                signatures[name][overload] = f"{before}x"
        print(release, len(found[release]), "names", flush=True)
    every, common = set.union(*found.values()), set.intersection(*found.values())
    somewhere = {
        name: "".join("x" if name in found[release] else "-" for release in RELEASES) for name in sorted(every - common)
    }
    for marks in signatures.values():
        marks.update({overload: mark.ljust(len(RELEASES), "-") for overload, mark in marks.items()})
    value = {"releases": RELEASES, "everywhere": sorted(common), "somewhere": somewhere, "signatures": signatures}
    OUT.write_text(json.dumps(value, indent=0) + "\n")


if __name__ == "__main__":
    main()
