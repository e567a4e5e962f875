"""What the engine and its images are made of: Debian's packages of the engine, a base system, wheels.

Everything is fetched once and kept in the cache folder, keyed by what it is made from. The base image stands for the
official `python:3.11-slim-bookworm`, which cannot be pulled here: the same Debian release, the same Python, and tini.
Read `tests/integration/engine/images.py` next.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.debian import APT_S, cache_folder, fetch, have, locked, run, sources, unpack

SUITE = "bookworm"
PYTHON = "3.11"
ROOT = Path(__file__).resolve().parents[3]
ENGINE = (
    "docker.io", "containerd", "runc", "tini", "iptables", "libip4tc2", "libip6tc2", "libnetfilter-conntrack3",
    "libnfnetlink0", "libnftnl11", "libxtables12", "libmnl0", "libdevmapper1.02.1", "libseccomp2", "mmdebstrap",
    "docker-compose", "python3-docker", "python3-dockerpty", "python3-docopt", "python3-dotenv", "python3-jsonschema",
    "python3-requests", "python3-texttable", "python3-websocket", "python3-yaml", "python3-distro", "python3-six",
    "python3-attr", "python3-certifi", "python3-chardet", "python3-charset-normalizer", "python3-idna",
    "python3-pyrsistent", "python3-urllib3", "python3-distutils", "python3-lib2to3",
)  # fmt: skip
"""The engine, what it links to beyond any Debian's base, and its compose, which is a Python program."""
BASE = (
    "base-files", "base-passwd", "bash", "coreutils", "dash", "findutils", "grep", "hostname", "libc-bin",
    "libstdc++6", "passwd",
    "python3", "python3-venv", "sed", "tini", "tzdata",
)  # fmt: skip
PLATFORMS = (
    *(f"{name}_x86_64" for name in ("linux", "manylinux1", "manylinux2010", "manylinux2014")),
    *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 37)),
)
"""Everything that runs on Debian 12's C library, 2.36, whatever this machine's own is."""
EXTRAS = "consul,dispatch,onnx"


def engine_tree() -> Path:
    """The folder with the engine's `usr`. Raises DebianError."""
    have("dpkg-deb", "apt-get")
    debs = fetch(ENGINE, SUITE)
    tree = next(iter(debs.values())).parent / "tree"
    with locked(tree.with_suffix(".lock")):
        if not tree.is_dir():
            with tempfile.TemporaryDirectory(prefix="unpacking-", dir=tree.parent) as work:
                root = Path(work) / "root"
                unpack(list(debs.values()), root)
                for family in ("iptables", "ip6tables"):  # what Debian's alternatives would have linked
                    for tail in ("", "-save", "-restore"):
                        (root / "usr/sbin" / (family + tail)).symlink_to("xtables-nft-multi")
                root.rename(tree)
    return tree


def base_image(engine: Path) -> Path:
    """A tar of the base system. It is unpacked without running the packages' scripts, which takes a tenth of the time.

    Raises DebianError.
    """
    made_from = f"{SUITE} {BASE} {Path(__file__).read_text()}"
    path = cache_folder("containers") / f"base-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.tar"
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            with tempfile.TemporaryDirectory(prefix="base-", dir=path.parent) as work:
                _build_base(Path(work), engine)
                (Path(work) / "base.tar").rename(path)
    return path


def _build_base(work: Path, engine: Path) -> None:
    root, listed = work / "root", work / "sources.list"
    listed.write_text(sources(SUITE))
    have("perl")
    programs = engine / "usr/bin"  # mmdebstrap calls another program of its package, which may not be installed
    words = ["env", f"PATH={programs}:{os.environ['PATH']}", "perl", str(programs / "mmdebstrap")]
    words += ["--quiet", "--mode=root", "--variant=extract"]
    words += ["--format=directory", f"--include={','.join(BASE)}"]
    words += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")]
    run([*words, SUITE, str(root), str(listed)], APT_S)
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    (root / "etc/shadow").touch(0o640)
    (root / "etc/gshadow").touch(0o640)
    shutil.rmtree(root / "var/lib/apt", ignore_errors=True)
    for name in ("proc", "sys", "dev", "run", "tmp"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    run(["chroot", str(root), "ldconfig"], 60.0)
    # Without its own byte code each process of a user who cannot write there would compile the library again.
    compiled = ["python3", "-m", "compileall", "-q", "-j2", f"/usr/lib/python{PYTHON}"]
    subprocess.run(["chroot", str(root), *compiled], timeout=200, capture_output=True, check=False)
    run(["tar", "-C", str(root), "-cf", str(work / "base.tar"), "."], 120.0)


def wheels() -> Path:
    """The folder of all wheels that the image installs, in the versions of constraints.txt. Raises DebianError."""
    printed = run([sys.executable, "docker/requirements.py", EXTRAS], 60.0, cwd=ROOT)
    key = hashlib.sha256((printed + (ROOT / "constraints.txt").read_text()).encode()).hexdigest()[:16]
    folder = cache_folder("containers") / f"wheels-{key}"
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix="wheels-", dir=folder.parent) as work:
                listed = Path(work) / "requirements.txt"
                listed.write_text(printed)
                words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--only-binary=:all:"]
                words += ["--python-version", PYTHON, "--implementation", "cp"]
                words += [word for abi in ("cp311", "abi3", "none") for word in ("--abi", abi)]
                words += [word for platform in PLATFORMS for word in ("--platform", platform)]
                words += ["--constraint", str(ROOT / "constraints.txt"), "--requirement", str(listed)]
                run([*words, "--dest", f"{work}/wheels"], APT_S)
                (Path(work) / "wheels").rename(folder)
    return folder
