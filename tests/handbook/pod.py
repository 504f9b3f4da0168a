"""`pod add|delete NAMESPACE/NAME` on the stage: what a container runtime does, through the plugin ptp.

It makes a network namespace, calls the plugin, and keeps the result where libcni does (/var/lib/cni/results), which is
what the agent reads when its ledger is lost. `--lost` ends the pod's namespace and tells nobody. Standard library
alone.
"""

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

RESULTS = Path("/var/lib/cni/results")
BIN = "/opt/cni/bin"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["add", "delete"])
    parser.add_argument("pod")
    parser.add_argument("--network", default="blue")
    parser.add_argument("--plugin", default="ptp")
    parser.add_argument("--ip", default="")
    parser.add_argument("--lost", action="store_true")
    told = parser.parse_args()
    namespace, name = told.pod.split("/")
    container = hashlib.sha256(told.pod.encode()).hexdigest()
    netns = f"{namespace}-{name}"
    cached = RESULTS / f"{told.network}-{container}-eth0"
    arguments = [["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", namespace], ["K8S_POD_NAME", name]]
    if told.ip:
        arguments.append(["IP", told.ip])
    if told.lost:
        return subprocess.run(["ip", "netns", "delete", netns], check=False).returncode
    conf = {
        "cniVersion": "1.0.0",
        "name": told.network,
        "type": told.plugin,
        "ipam": {"type": "allotment", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]},
    }
    environment = {
        **os.environ,
        "CNI_COMMAND": told.verb.replace("delete", "del").upper(),
        "CNI_CONTAINERID": container,
        "CNI_NETNS": f"/run/netns/{netns}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": BIN,
        "CNI_ARGS": ";".join("=".join(pair) for pair in arguments),
    }
    if told.verb == "add" and not Path(f"/run/netns/{netns}").exists():
        subprocess.run(["ip", "netns", "add", netns], check=True)
    done = subprocess.run(
        [f"{BIN}/{told.plugin}"], input=json.dumps(conf).encode(), env=environment, capture_output=True, check=False
    )
    if done.returncode:
        print(json.dumps(json.loads(done.stdout)))
        if told.verb == "add":
            subprocess.run(["ip", "netns", "delete", netns], check=True)
        return done.returncode
    if told.verb == "add":
        RESULTS.mkdir(parents=True, exist_ok=True)
        content = {
            "kind": "cniCacheV1",
            "containerId": container,
            "config": base64.b64encode(json.dumps(conf).encode()).decode(),
            "ifName": "eth0",
            "networkName": told.network,
            "netns": f"/run/netns/{netns}",
            "cniArgs": arguments,
            "result": json.loads(done.stdout),
        }
        cached.write_text(json.dumps(content))
    else:
        cached.unlink(missing_ok=True)
        subprocess.run(["ip", "netns", "delete", netns], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
