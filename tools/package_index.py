"""Writes a package index for pip's --index-url: the pages of PEP 503, which link to the files with their hashes.

    python tools/package_index.py --out FOLDER [--releases JSON] [FILE...]

Each FILE, a wheel or a source distribution, is put beside its project's page. JSON is what GitHub says of the releases
of a repository (`gh api --paginate --slurp repos/OWNER/NAME/releases`): the distributions that are attached to them are
linked to where they are.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

PAGE = """\
<!DOCTYPE html>
<html>
<head><meta name="pypi:repository-version" content="1.0"><title>{}</title></head>
<body>
{}</body>
</html>
"""
DISTRIBUTION = re.compile(r"(\w+)-\d[^-]*(?:-.+\.whl|\.tar\.gz)")
Links = Mapping[str, Mapping[str, str]]  # for each project the addresses, with hashes, of files


def project_of(file: str) -> str | None:
    """The project's name as PEP 503 has it in addresses, if this is the name of a distribution's file."""
    found = DISTRIBUTION.fullmatch(file)
    return re.sub(r"[-_.]+", "-", found[1]).lower() if found else None


def write(out: Path, links: Links) -> None:
    page(out / "index.html", "Projects", {project: f"{project}/" for project in links})
    for project, files in links.items():
        page(out / project / "index.html", f"Links for {project}", files)


def page(file: Path, title: str, links: Mapping[str, str]) -> None:
    lines = (f'<a href="{html.escape(url)}">{html.escape(name)}</a><br>\n' for name, url in sorted(links.items()))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PAGE.format(html.escape(title), "".join(lines)), encoding="utf-8")


def place(out: Path, files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Copies distributions to their projects' folders; their names and addresses."""
    for file in files:
        if not (project := project_of(file.name)):
            raise SystemExit(f"{file} is no distribution")
        (out / project).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, out / project)
        yield file.name, f"{file.name}#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}"


def attached(pages: Sequence[Sequence[Mapping[str, object]]]) -> Iterator[tuple[str, str]]:
    """The names and addresses of distributions that releases have; drafts are left out."""
    for release in (release for page in pages for release in page if not release["draft"]):
        assets = release["assets"]
        assert isinstance(assets, list)
        for asset in assets:
            if project_of(asset["name"]):
                kind, _, value = str(asset["digest"]).partition(":")
                if kind != "sha256":
                    raise SystemExit(f"GitHub has no SHA-256 of {asset['name']}")
                yield asset["name"], f"{asset['browser_download_url']}#sha256={value}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the index is written")
    parser.add_argument("--releases", type=Path, metavar="JSON", help="of a repository on GitHub")
    arguments = parser.parse_args()
    links: dict[str, dict[str, str]] = defaultdict(dict)
    found = list(place(arguments.out, arguments.files))
    if arguments.releases:
        found += attached(json.loads(arguments.releases.read_text(encoding="utf-8")))
    for name, url in found:
        project = project_of(name)
        assert project
        links[project][name] = url
    write(arguments.out, links)
    for project, names in links.items():
        print(f"{arguments.out / project}: {len(names)} files")


if __name__ == "__main__":
    main()
