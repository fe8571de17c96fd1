"""python -m tilewise: what this build can do on this machine."""

import tilewise

print(tilewise.info(), end="")
