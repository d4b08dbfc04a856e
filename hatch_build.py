"""Build hook: an editable install links the top-level folders into src/tensor_graphs; wheels map them instead."""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LinkFolders(BuildHookInterface):  # type: ignore[type-arg]
    """Create one link per mapped folder, so that editors, mypy and pytest see the package as it is installed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            return
        for source, target in self.build_config.sources.items():
            if target:
                self._link(Path(self.root, source), Path(self.root, "src", target))

    @staticmethod
    def _link(folder: Path, link: Path) -> None:
        if link.exists():
            return
        if os.name == "nt":
            import _winapi  # a junction needs no privilege, a symbolic link does

            _winapi.CreateJunction(str(folder), str(link))  # type: ignore[attr-defined]
        else:
            link.symlink_to(os.path.relpath(folder, link.parent), target_is_directory=True)
