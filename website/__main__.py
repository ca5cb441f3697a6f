"""The command behind ./scripts/docs."""

import argparse
import sys
from pathlib import Path

from website.build import build_site
from website.pages import ROOT, SiteError


def main() -> int:
    """Build the site, and say where it is."""
    parser = argparse.ArgumentParser(prog="./scripts/docs", description="Build the documentation site.")
    parser.add_argument("--output", type=Path, default=ROOT / "build/site", help="the folder (default: build/site)")
    options = parser.parse_args()
    output = options.output.absolute()
    try:
        summary = build_site(output, work=ROOT / "build/site-work")
    except SiteError as error:
        print(error, file=sys.stderr)
        print("The site was not built.", file=sys.stderr)
        return 1
    print(f"{summary}: {output / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
