"""Processes that are the ranks of torch.distributed, for several tests."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

SECONDS = 100  # that a test may take


class Ranks:
    """Starts `size` processes with gloo, and groups of the first 1, 2, ... of them."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")  # which imports PyTorch once
        context.set_forkserver_preload(["torch._dynamo", "rank_cases"])
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        pairs = [context.Pipe() for _ in range(size)]
        self._pipes = [ours for ours, _ in pairs]
        self._processes = [
            context.Process(target=_serve, args=(theirs, rank, size, port), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self._processes:
            process.start()

    def run(self, function: Callable[..., Any], *args: Any, size: int | None = None) -> list[Any]:
        """Calls function(group, *args) on the first `size` ranks, all by default; returns their results, None for a
        process that has ended."""
        used = self._pipes[:size]
        for pipe in used:
            pipe.send((function, len(used), args))
        results, problems = [], []
        for rank, pipe in enumerate(used):
            if not pipe.poll(5 if problems else SECONDS):
                problems.append(f"rank {rank} hangs")
                continue
            try:
                is_result, value = pipe.recv()
            except EOFError:
                is_result, value = True, None
            results.append(value)
            if not is_result:
                problems.append(f"rank {rank}:\n{value}")
        assert not problems, "\n".join(problems)
        return results

    def stop(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            process.kill()


def _serve(pipe: Any, rank: int, size: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    groups = {number: dist.new_group(range(number)) for number in range(1, size + 1)}
    while True:
        try:
            function, number, args = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            pipe.send((True, function(groups[number], *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
