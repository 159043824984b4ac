"""Writes binding_names.json: what the Python modules of TensorRT's releases have, by name.

The bindings are small wheels, the libraries beneath are gigabytes and want a GPU. But a module can be imported, and
asked for its classes and their members, over libraries that only have the dozen functions by which it enters them. So
such libraries are compiled, empty, for every release, and what Python sees is written down.

    python tests/engines/tensorrt/make_binding_names.py    # on Linux on x86-64, with pip and a C compiler
"""

from __future__ import annotations

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

LIST_NAMES = """
import inspect, json, tensorrt_bindings

def names(owner, prefix=""):
    for name in dir(owner):
        if not name.startswith("_"):
            member = getattr(owner, name, None)
            yield prefix + name
            if inspect.isclass(member) and member is not owner and prefix.count(".") < 2:
                yield from names(member, prefix + name + ".")

print(json.dumps(sorted(set(names(tensorrt_bindings)))))
"""


def run(*command: str | Path, **options: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, **options).stdout


def names_of(release: str, folder: Path) -> list[str]:
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
    found: list[str] = json.loads(run(sys.executable, "-c", LIST_NAMES, env=environment))
    return found


def main() -> None:
    found = {}
    for release in RELEASES:
        with tempfile.TemporaryDirectory() as folder:
            found[release] = set(names_of(release, Path(folder)))
        print(release, len(found[release]), "names", flush=True)
    every, common = set.union(*found.values()), set.intersection(*found.values())
    somewhere = {
        name: "".join("x" if name in found[release] else "-" for release in RELEASES) for name in sorted(every - common)
    }
    value = {"releases": RELEASES, "everywhere": sorted(common), "somewhere": somewhere}
    OUT.write_text(json.dumps(value, indent=0) + "\n")


if __name__ == "__main__":
    main()
