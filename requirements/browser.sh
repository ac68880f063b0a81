#!/usr/bin/env bash
# Installs the headless Chromium with which the dashboard is tested, where there is none. Without it those tests are
# skipped and say so.
set -uo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then
        echo "$name is here"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null || [[ $(id -u) -ne 0 ]]; then
    echo "no Chromium here: install one (as root: apt-get install chromium); the dashboard's page is not tested" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-inter >/dev/null
