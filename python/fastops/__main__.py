"""``python -m fastops``: prints what a bug report needs."""

from .info import info

print(info())
