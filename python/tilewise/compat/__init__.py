"""Other libraries' functions, answered by Tilewise.

    import tilewise.compat
    tilewise.compat.install()        # from here on, `import flash_attn` finds Tilewise
"""

import importlib
import sys

# The modules of flash-attn 2 and 3, and ours in their place.
_MODULES = {
    "flash_attn": "tilewise.compat.flash_attn",
    "flash_attn.flash_attn_interface": "tilewise.compat.flash_attn.flash_attn_interface",
    "flash_attn.bert_padding": "tilewise.compat.flash_attn.bert_padding",
    "flash_attn.layers": "tilewise.compat.flash_attn.layers",
    "flash_attn.layers.rotary": "tilewise.compat.flash_attn.layers.rotary",
    "flash_attn.ops": "tilewise.compat.flash_attn.ops",
    "flash_attn.ops.triton": "tilewise.compat.flash_attn.ops.triton",
    "flash_attn.ops.triton.rotary": "tilewise.compat.flash_attn.ops.triton.rotary",
    "flash_attn_interface": "tilewise.compat.flash_attn_interface",
}


def install() -> None:
    """Makes ``import flash_attn`` and ``import flash_attn_interface`` find Tilewise in this process. Twice is once.

    Raises ImportError if the real package has been imported before: code may hold its functions already.
    """
    ours = {name: importlib.import_module(path) for name, path in _MODULES.items()}
    for name, module in ours.items():
        if sys.modules.get(name, module) is not module:
            raise ImportError(
                f"tilewise.compat.install: {name} is imported already, from {sys.modules[name].__file__}; "
                "call install() before anything imports it"
            )
    sys.modules.update(ours)


def uninstall() -> None:
    """Undoes install(): the next ``import flash_attn`` finds what is installed under that name, if anything is."""
    for name, path in _MODULES.items():
        module = sys.modules.get(name)
        if module is not None and module.__name__ == path:
            del sys.modules[name]


__all__ = ["install", "uninstall"]
