"""A load test of `rebapl serve`: clients send one image again and again, and their waiting times are measured.

python tools/load_serve.py http://127.0.0.1:8000 photo.jpg --clients 8 --seconds 20
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path


def load(address: str, image: Path, clients: int, seconds: float) -> tuple[list[float], int]:
    """Send requests for this time. Returns the seconds of each answered one, and the number of refused ones."""
    body = json.dumps({"image": base64.b64encode(image.read_bytes()).decode()}).encode()
    waits: list[float] = []
    refused = 0
    end = time.perf_counter() + seconds

    def client() -> None:
        nonlocal refused
        while (start := time.perf_counter()) < end:
            request = urllib.request.Request(f"{address}/predict", body, {"Content-Type": "application/json"})
            try:
                urllib.request.urlopen(request, timeout=60).read()
                waits.append(time.perf_counter() - start)
            except urllib.error.HTTPError:
                refused += 1

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits, refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("image", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    urllib.request.urlopen(f"{options.address}/about").close()  # fails at once if nobody answers at this address
    start = time.perf_counter()
    waits, refused = load(options.address, options.image, options.clients, options.seconds)
    spent = time.perf_counter() - start
    cuts = statistics.quantiles(waits, n=100)
    print(
        f"{options.clients} clients: {len(waits) / spent:.1f} requests a second, p50 {1000 * cuts[49]:.0f} ms, "
        f"p99 {1000 * cuts[98]:.0f} ms, {refused} refused"
    )


if __name__ == "__main__":
    main()
