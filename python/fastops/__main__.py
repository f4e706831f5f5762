"""``python -m fastops``: prints what a bug report needs."""

from ._distributions import namesakes
from .info import info

print(info())
for other in namesakes():
    print(f"also installed, another project's package of the name fastops: {other}; uninstall both, then install one")
