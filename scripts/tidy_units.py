"""Writes the compilation database that scripts/lint gives to clang-tidy.

Usage: tidy_units.py DATABASE FOLDER        (writes FOLDER/compile_commands.json)

clang-tidy matches its checks against every header of a source, which takes most of its time. So the sources of a part of
src/ that have the same flags become one unit, which includes them. Sources whose names collide, or that need other flags,
are units of their own. A source that is compiled for several instruction sets is checked once for each, but not again for
their emulation.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys


def entries_of_src(database):
    entries = [e for e in json.loads(database.read_text()) if re.search(r"^src/.*[.]cc$", os.path.relpath(e["file"]))]
    compiled = {e["file"] for e in entries if "tilewise_emulated_" not in e["command"]}
    return [e for e in entries if e["file"] not in compiled or "tilewise_emulated_" not in e["command"]]


def groups(entries):
    """Entries by their flags and part of src/."""
    by_flags = collections.defaultdict(list)
    for entry in entries:
        entry["command"] = re.sub(r" (-o|-MF|-MT|-MQ) \S+| -MM?D\b", "", entry["command"])
        flags = entry["command"].replace(entry["file"], "")
        by_flags[os.path.relpath(entry["file"]).split("/")[1], flags].append(entry)
    return list(by_flags.values())


def unit(entries, folder):
    """One entry for all: of a file that includes their files."""
    if len(entries) == 1:
        return entries[0]
    first = os.path.relpath(entries[0]["file"])
    path = folder / (first.replace("/", "_").removesuffix(".cc") + f"_{len(entries)}.cc")
    path.write_text("".join(f'#include "{e["file"]}"  // NOLINT(bugprone-suspicious-include)\n' for e in entries))
    command = entries[0]["command"].replace(entries[0]["file"], str(path))
    return {"directory": entries[0]["directory"], "command": command, "file": str(path)}


def units(entries, folder):
    """As few units as compile: halves of those that do not."""
    whole = unit(entries, folder)
    if len(entries) == 1 or subprocess.run(whole["command"] + " -fsyntax-only", shell=True, cwd=whole["directory"],
                                           stderr=subprocess.DEVNULL).returncode == 0:
        return [whole]
    half = len(entries) // 2
    return units(entries[:half], folder) + units(entries[half:], folder)


database, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).absolute()
folder.mkdir(parents=True, exist_ok=True)
for old in folder.glob("*.cc"):
    old.unlink()
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    made = [u for part in pool.map(lambda group: units(group, folder), groups(entries_of_src(database))) for u in part]
(folder / "compile_commands.json").write_text(json.dumps(made, indent=1))
