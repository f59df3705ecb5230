#!/usr/bin/env bash
# Runs the critest found on PATH against a fresh crispd, and wipes that node's state afterwards.
#
#   critest.sh BINDIR [critest's flags…]
#
# skip.txt beside this file lists the specs that are left out, each line with its reason.
# CONTAINERS_REGISTRIES_CONF is passed on to crispd: it may name mirrors for registry.k8s.io,
# gcr.io and k8s.gcr.io where those cannot be reached. specs.txt lists the specs that must pass;
# the program specs, in BINDIR or named by SPECS, reports those that did not. CRISPD_CONFIG may
# name a configuration file for crispd; by default it has none. Runs of critest share the ports
# 12000 to 12003 of the host.
#
# An ordinary user's critest runs in the namespaces of that user's crispd (docs/rootless.md), where pods and
# their ports are. skip-user.txt lists what it leaves out besides.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "${1:?the directory of the built programs}" && pwd)
shift
command -v critest >/dev/null || {
	echo "critest is not on PATH: build it from kubernetes-sigs/cri-tools (make critest)" >&2
	exit 1
}
lists=("$here/skip.txt")
[ "$(id -u)" = 0 ] || lists+=("$here/skip-user.txt")
skip=$(sed -e 's/[[:space:]]*#.*//' -e '/^$/d' "${lists[@]}" | paste -sd'|')
if grep -vhE '^[[:space:]]*(#|$)' "${lists[@]}" | grep -v '#'; then
	echo "a line of ${lists[*]} has no reason" >&2
	exit 1
fi

dir=$(mktemp -d /tmp/critest.XXXXXX)
chmod 711 "$dir" # users of user namespaces must get through it
node=(--config "${CRISPD_CONFIG:-}" --root "$dir/root" --state "$dir/run")
"$bin/crispd" "${node[@]}" --socket "$dir/s" >"$dir/crispd.log" 2>&1 &
crispd=$!
finish() {
	code=$?
	kill "$crispd" 2>/dev/null && wait "$crispd" || true
	[ "$code" = 0 ] || { echo "--- the end of crispd's log" >&2; tail -50 "$dir/crispd.log" >&2; }
	"$bin/crispd" wipe --all "${node[@]}" >/dev/null || code=1
	rm -rf "$dir"
	exit "$code"
}
trap finish EXIT
# The socket exists before crispd answers, which may take a while on a slow machine.
until "$bin/crisp" --runtime-endpoint "unix://$dir/s" version >/dev/null 2>&1; do
	kill -0 "$crispd" || exit 1
	sleep 0.05
done

enter=()
if [ "$(id -u)" != 0 ]; then
	read -r keeper _ <"$dir/run/keeper"
	enter=(nsenter -t "$keeper" -U -m --preserve-credentials)
	[ "$(readlink "/proc/$keeper/ns/net")" = "$(readlink /proc/self/ns/net)" ] || enter+=(-n)
fi
"${enter[@]}" critest -runtime-endpoint "unix://$dir/s" -image-endpoint "unix://$dir/s" -nri-socket "$dir/run/nri.sock" \
	-ginkgo.json-report="$dir/report.json" ${skip:+-ginkgo.skip="$skip"} "$@"
"${SPECS:-$bin/specs}" "$here/specs.txt" "$dir/report.json" "$skip"
