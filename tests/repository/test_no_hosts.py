"""No file names a package registry's host, or a path of the machine that it was written on."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Made of pieces, so that this file does not match itself.
HOSTS = rf"{'pyp'}i\.org|{'python'}hosted\.org|{'npm'}js\.(org|com)|deb\.{'debi'}an\.org"
PATHS = rf"(?<![\w.])/({'wo'}rk|{'fa'}rm)/|{re.escape(str(ROOT))}\b"


def test_no_file_names_a_registry_host_or_a_path_of_this_machine() -> None:
    # Untracked files too, but for the ignored ones: they are about to be committed.
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]
    forbidden = re.compile(f"{HOSTS}|{PATHS}")

    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1)
        if (match := forbidden.search(line))
    ]

    assert Path(__file__) in files
    assert found == []
