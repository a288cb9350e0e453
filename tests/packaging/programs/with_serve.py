"""Program for the extra `serve`: a bundle is served over HTTP until SIGTERM."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

calibrant = Path(sys.executable).with_name("calibrant")
command = [calibrant, "serve", sys.argv[1], "--port", "0", "--notice", "0", "--json"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
    assert service.stdout is not None
    said = json.loads(service.stdout.readline())
    url = said["url"]
    body = json.dumps({"texts": ["one more cat", "one more dog"]}).encode()
    request = urllib.request.Request(f"{url}/v1/classify", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        answer = json.load(response)
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        metrics = response.read().decode()
    service.send_signal(signal.SIGTERM)
assert service.returncode == 0, service.returncode
assert [row["label"] for row in answer["results"]] == ["cat", "dog"]
assert "calibrant_" in metrics
print(*(row["label"] for row in answer["results"]))
