"""A fleet on a simulated host: it does what it reads, a line of JSON each, and prints what happens, as well.

`{"reach": host}`, `{"start": number, "host": name, "do": script}`, `{"end": number, "signum": number}`,
`{"drop": host}` and `{"finish": signum}`. Each event is `{"event": name, field: value, ...}`.
"""

from __future__ import annotations

import json
import os
import select
import sys

from tests.launch.fleets import RunningFleet, fleet_of

from horovod.launch.contracts.events import Finished, HostReached


def main() -> None:
    with fleet_of("sh", "-c", 'eval "$DO"', launcher="ssh", silence_s=3.0, start_s=8.0) as running:
        print("{}", flush=True)
        unread = b""
        while not any(isinstance(event, Finished) for event in running.seen):
            ready, _, _ = select.select([0, running.fleet.fileno()], [], [])
            if 0 in ready:
                said = os.read(0, 1 << 16)
                if not said:
                    return
                *lines, unread = (unread + said).split(b"\n")
                for line in lines:
                    follow(running, json.loads(line))
            for event in running.fleet.events():
                running.seen.append(event)
                plain = event._asdict()
                if isinstance(event, HostReached):
                    plain["facts"] = event.facts._asdict()
                print(json.dumps({"event": type(event).__name__, **plain}), flush=True)


def follow(running: RunningFleet, request: dict[str, object]) -> None:
    match request:
        case {"reach": str(host)}:
            running.fleet.reach(host)
        case {"start": int(number), "host": str(host), "do": str(script)}:
            running.begin(number, host, DO=script)
        case {"end": int(number), "signum": int(signum)}:
            running.fleet.end([number], signum)
        case {"drop": str(host)}:
            running.fleet.drop(host)
        case {"finish": int(signum)}:
            running.fleet.finish(signum)
        case _:
            sys.exit(f"what is {request}?")


if __name__ == "__main__":
    main()
