"""`systemctl …` on the stage: asks `manager.py`."""

import shlex
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
    asked.connect("/run/manager.sock")
    asked.sendall(shlex.join(sys.argv[1:]).encode())
    said = b"".join(iter(lambda: asked.recv(4096), b"")).decode()
if sys.argv[1] == "show":
    print(said)
    sys.exit()
sys.exit(said or 0)
