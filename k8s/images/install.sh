#!/bin/sh
# install.sh SOURCE PREFIX EXTRAS: gpu-failover as the sidecar's image has it. What local-pod shows a container is laid
# out the same (tools/local_pod/image.py).
#
#   PREFIX/bin        python, and our commands
#   PREFIX/packages   our own packages alone, with their bytecode: an init container copies them to the engines
set -eu
source=$1 prefix=$2 extras=$3
python3 -m venv "$prefix"
"$prefix/bin/python" -m pip install --no-cache-dir --disable-pip-version-check --quiet "$source[$extras]"
site=$("$prefix/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir "$prefix/packages"
for package in sidecar evidence lockserver gms engine_shim reference_engine gateway vram pool fleet dual_pods; do
    mv "$site/$package" "$prefix/packages/$package"
    ln -s "$prefix/packages/$package" "$site/$package"
done
"$prefix/bin/python" -m compileall -q "$prefix/packages"
"$prefix/bin/python" -m pip uninstall --yes --quiet pip
