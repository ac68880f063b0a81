#!/usr/bin/env bash
# Installs what `make deploy-check` checks with, tool by tool.  usage: deploy.sh PYTHON NODE_FOLDER
# Exit code 1: some could not be had; their checks are skipped and say so.
set -uo pipefail

python=$1
node=$2
here=$(dirname "$0")
missing=0

while read -r kind package; do
    case $kind in
        pip) "$python" -m pip install -qq --disable-pip-version-check --constraint "$here/constraints.txt" "$package" ;;
        npm) command -v npm >/dev/null && npm install --silent --no-audit --no-fund --prefix "$node" "$package" </dev/null ;;
        *) continue ;;
    esac
    # shellcheck disable=SC2181
    if [[ $? -ne 0 ]]; then
        echo "cannot install $package ($kind): what it checks is skipped"
        missing=1
    fi
done <"$here/deploy.txt"
exit "$missing"
