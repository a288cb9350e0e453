"""Label the rows of ``calibrant certify`` in a Label Studio server until none waits; print its last output."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from label_studio_sdk import LabelStudio

server, token, command = sys.argv[1:]
FILE = Path("tasks.json")
studio = LabelStudio(base_url=server, api_key=token)


def certify() -> str:
    """Run certify on the answers so far, and return what it prints."""
    asked = ["certify", "p.jsonl", "--target", "0.9", "--budget", "70", "--ask", "tasks.json", "--out", "out"]
    return subprocess.run([command, *asked], capture_output=True, text=True, check=True).stdout


def exported(project: int) -> list[dict[str, Any]]:
    """Write the project's JSON export in place of the tasks, and return it."""
    address = f"{server}/api/projects/{project}/export?exportType=JSON"
    with urllib.request.urlopen(
        urllib.request.Request(address, headers={"Authorization": f"Token {token}"})
    ) as reply:
        FILE.write_bytes(reply.read())
    return json.loads(FILE.read_bytes())


said = certify()
project = studio.projects.create(title="animals", label_config=Path("tasks.xml").read_text()).id
seen: set[int] = set()
while new := [task for task in json.loads(FILE.read_bytes()) if task["data"]["index"] not in seen]:
    studio.projects.import_tasks(id=project, request=new)
    for task in studio.tasks.list(project=project, fields="all"):
        if task.data["index"] not in seen:
            seen.add(task.data["index"])
            label = "cat & co" if task.data["text"].startswith("sure") else 'a "dog"'
            choice = {
                "from_name": "label",
                "to_name": "text",
                "type": "choices",
                "value": {"choices": [label]},
            }
            studio.annotations.create(id=task.id, result=[choice])
    before = exported(project)
    said = certify()
    assert json.loads(FILE.read_bytes())[: len(before)] == before, "certify lost a part of the export"
print(said)
