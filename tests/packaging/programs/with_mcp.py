"""Ask ``calibrant mcp`` about a cat and a dog, over its input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters, stdio_client

program = str(Path(sys.executable).with_name("calibrant"))
server = StdioServerParameters(command=program, args=["mcp", sys.argv[1]], env=dict(os.environ))


async def labels() -> list[str]:
    """Return the labels of both texts."""
    async with Client(stdio_client(server)) as client:
        found = await client.call_tool("classify_many", {"texts": ["a cat", "a dog"]})
        assert found.structured_content is not None
        return [answer["label"] for answer in found.structured_content["results"]]


print(*asyncio.run(labels()))
