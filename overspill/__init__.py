"""The public face of Overspill: `from overspill import Router, AsyncRouter, RouterConfig, errors`.

Everything else in the distribution may move between releases; these names do not. They are looked up when first used,
so that a command which needs no router does not pay for importing one. Nothing is decided here, and no room is imported
before `overspill/_guard.py` has seen that it is ours. The walk of a request starts in `router/`, the command in
`overspill/cli.py`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from overspill import _guard

_guard.check(Path(__file__).parent.parent)

if TYPE_CHECKING:
    from fabric import errors
    from router import AsyncRouter, Router, RouterConfig

    __version__: str

__all__ = ["AsyncRouter", "Router", "RouterConfig", "__version__", "errors"]

# A type checker reads the imports above; behind a module's __getattr__ it would believe any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports a public name at its first use. Raises AttributeError for any other."""
        if name not in __all__:
            raise AttributeError(f"overspill has no public name {name!r}; it has {', '.join(__all__)}")
        found = globals()[name] = _look_up(name)
        return found

    def _look_up(name: str) -> object:
        from importlib import import_module, metadata

        if name == "__version__":  # said once, in pyproject.toml
            try:
                return metadata.version("overspill")
            except metadata.PackageNotFoundError:  # run from a checkout that was never installed
                return "0+checkout"
        return import_module("fabric.errors") if name == "errors" else getattr(import_module("router"), name)

    def __dir__() -> list[str]:
        """The public names, whether or not they were used yet."""
        return sorted(__all__)
