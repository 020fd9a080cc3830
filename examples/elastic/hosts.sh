#!/bin/sh
# Prints the hosts that may be used now, one a line: name:slots. horovodrun asks each second.
# This one reads a file that you edit while the job runs. Ask your cloud or your scheduler here.
cat "${HOSTS_FILE:-hosts.txt}" 2>/dev/null || echo localhost:2
