r"""Packages whose archive leads out of where it is unpacked: made here, and unpacked by who does not look.

`make FOLDER TARGET` writes one for each way below; `unpack WHEEL INTO` is the control: an installer that puts
everything where its name says, takes `\\` for `/` as some do, and checks nothing.
"""

import os
import stat
import sys
import zipfile
from pathlib import Path

UP = "../" * 24
# The entry that is a symbolic link; its content is where it leads.
LINK = "omni_way"


def ways(target):
    """By the package's name: entries, path and content."""
    up = UP + target.strip("/")
    return {
        "climbs": {f"{up}/climbed": "x"},
        "absolute": {f"{target}/absolute": "x"},
        "inside": {f"inside/{up}/inside": "x"},
        "scripts": {f"omni_scripts-1.0.data/scripts/{up}/scripted": "x"},
        "data": {f"omni_data-1.0.data/data/{up}/data": "x"},
        "backslash": {f"{up}/backslashed".replace("/", "\\"): "x"},
        "link": {LINK: target, f"{LINK}/linked": "x"},
        "command": {"omni_command-1.0.dist-info/entry_points.txt": f"[console_scripts]\n{up}/commanded = os:abort\n"},
        "headers": {f"omni_headers-1.0.data/headers/{up}/headed.h": "x"},
    }


def make(folder, target):
    for name, entries in ways(target).items():
        info = f"omni_{name}-1.0.dist-info"
        with zipfile.ZipFile(Path(folder, f"omni_{name}-1.0-py3-none-any.whl"), "w") as wheel:
            for path, content in entries.items():
                entry = zipfile.ZipInfo()
                entry.filename = path  # as it stands: the constructor would tidy it
                if path == LINK:
                    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
                wheel.writestr(entry, content)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: omni-{name}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")


def place(into, name):
    """Where an entry goes: what is below `NAME.data/SCHEME` into a folder of its scheme."""
    name = name.replace("\\", "/")
    first, _, rest = name.partition("/")
    path = os.path.join(into, rest if first.endswith(".data") else name)
    return os.path.normpath(path) if "/../" in path else path


def commands(text):
    """The names of commands in `entry_points.txt`."""
    return [line.partition(" = ")[0] for line in text.decode().splitlines() if " = " in line]


def unpack(wheel, into):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path, content = place(into, entry.orig_filename), archive.read(entry)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if stat.S_ISLNK(entry.external_attr >> 16):
                os.symlink(content, path)
                continue
            with open(path, "wb") as file:
                file.write(content)
            if path.endswith("/entry_points.txt"):
                for command in commands(content):
                    with open(place(into, f"bin/{command}"), "w") as file:
                        file.write("#!/usr/bin/python3\n")


if __name__ == "__main__":
    {"make": make, "unpack": unpack}[sys.argv[1]](*sys.argv[2:])
