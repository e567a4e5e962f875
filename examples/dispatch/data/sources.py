"""Where each public data set comes from, under which licence, and the digest of the copy that figures were taken on.

None of the sets is shipped with this project. A digest is over the sorted file names and contents of a set's folder,
so a copy that differs in one byte is known at once. Nothing here reads a format. Next: the loader that a set names.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """One set; folder and sha256 are empty where the user names a path of their own."""

    name: str
    folder: str
    patterns: tuple[str, ...]
    origin: str
    commit: str
    licence: str
    licence_file: str
    files: int
    sha256: str
    loader: str


SOURCES = (
    Source(
        "Grubhub TSPPD",
        "tsppd_grubhub",
        ("*.pdt",),
        "github.com/vidalt/PDTSP, instances/Grubhub; first github.com/grubhub/tsppdlib (ffc9e17)",
        "451bc8a",
        "MIT as republished",
        "vidalt-PDTSP-MIT.txt",
        98,
        "b433261ff1ca3846748c22e18db068bc965e77fd2a5dfd0a4800a3990b5cc9f8",
        "grubhub.py",
    ),
    Source(
        "Grubhub TSPPD optima",
        "tsppd_grubhub",
        ("optimal.csv",),
        "this project: dynamic programming over 3^n states",
        "",
        "Apache-2.0",
        "",
        1,
        "873f88f9809d7d0f476786ea6e5ff58db0153519ce9236e465042da1ff4cf080",
        "grubhub.py",
    ),
    Source(
        "Dumitrescu PDTSP",
        "pdtsp_dumitrescu",
        ("*.txt", "*.sol"),
        "github.com/vidalt/PDTSP, instances/Dumitrescu",
        "451bc8a",
        "MIT",
        "vidalt-PDTSP-MIT.txt",
        42,
        "bd970bedef09850d12a0f49d8e46018c31ba37ae8824351fe063bb8cd12b9763",
        "dumitrescu.py",
    ),
    Source(
        "Li & Lim PDPTW",
        "pdptw_lilim",
        ("li_lim_100/*.txt", "li_lim_200/*.txt", "BKS.json"),
        "github.com/VROOM-Project/vroom-scripts, benchmarks/PDPTW",
        "0f5ee1e",
        "BSD-2-Clause",
        "VROOM-vroom-scripts-BSD2.txt",
        108,
        "54f217248357f8ee23d6127e21a2913120aa00df2552e2980ac5a9d09a1349d0",
        "lilim.py",
    ),
    Source(
        "Li & Lim routes",
        "pdptw_lilim",
        ("routes_100_vroom.json",),
        "this project: pyvroom 1.15.2, exploration level 5",
        "",
        "Apache-2.0",
        "",
        1,
        "ae506e0d33fb7dfa8f51e9d58ab566c7648d188aa17e6f4fec655f90f9801ea0",
        "lilim.py",
    ),
    Source(
        "deliveries",
        "food_delivery_time",
        ("deliveries.csv",),
        "github.com/tidymodels/modeldata, data/deliveries.rda turned into CSV",
        "5c22676",
        "MIT",
        "tidymodels-modeldata-MIT.txt",
        1,
        "8c769288f469059b1d4aa4d58bc3bf2f97c37d243d7abc8e602abb7e49e151b6",
        "../etr/deliveries.py",
    ),
    Source("mdrplib", "", (), "github.com/grubhub/mdrplib", "4568b52", "none stated", "", 0, "", "mdrplib.py"),
    Source(
        "Meituan INFORMS-TSL",
        "",
        (),
        "github.com/meituan/Meituan-INFORMS-TSL-Research-Challenge",
        "4ea8b93",
        "CC BY-NC 4.0, no distribution to third parties",
        "",
        0,
        "",
        "meituan.py",
    ),
    Source("LaDe", "", (), "huggingface.co/datasets/Cainiao-AI/LaDe", "", "Apache-2.0", "", 0, "", "lade.py"),
)


def set_files(source: Source, data: Path) -> list[Path]:
    """Return a set's files under the data folder, by name."""
    folder = data / source.folder
    return sorted(path for pattern in source.patterns for path in folder.glob(pattern))


def set_digest(source: Source, data: Path) -> str:
    """Return the SHA-256 over a set's file names (relative to its folder) and contents."""
    digest = hashlib.sha256()
    for path in set_files(source, data):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(data / source.folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
