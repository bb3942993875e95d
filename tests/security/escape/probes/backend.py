"""A package's build step (PEP 517) that tries every probe; the module that it builds says what came of them.

The test puts the probes' sources and the world in front of this text: a source package has no other files here.
"""

import json
import os
import sys
import tempfile
import zipfile

SOURCES, WORLD = globals()["SOURCES"], globals()["WORLD"]


def build_wheel(directory, settings=None, metadata=None):
    with tempfile.TemporaryDirectory() as place:
        for name, text in SOURCES.items():
            with open(os.path.join(place, name), "w") as file:
                file.write(text)
        sys.path.insert(0, place)
        from table import try_all  # noqa: PLC0415  it is there from now on

        found = try_all(WORLD | {"scratch": tempfile.mkdtemp()})
    wheel = "omni_hostile-1.0-py3-none-any.whl"
    info = "omni_hostile-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(directory, wheel), "w") as archive:
        archive.writestr("omni_hostile.py", f"import json\nFOUND = json.loads({json.dumps(found)!r})\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: omni-hostile\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel
