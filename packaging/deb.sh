#!/usr/bin/env bash
# Makes the Debian package from built programs, and prints its path.
#
#   deb.sh BINDIR VERSION
#
# VERSION is git's: v1.2-3-gabc becomes 1.2+3-gabc. Without a tag it becomes 0.0
# with the number of commits, so that a later one is an upgrade.
set -euo pipefail
bin=$(realpath "$1") version=${2#v}
cd "$(dirname "$0")/.."

case $version in
[0-9]*.*) version=${version/-/+} ;;
*) version=0.0+$(git rev-list --count HEAD 2>/dev/null || echo 0).$version ;;
esac
version=$(tr -c 'A-Za-z0-9.+~\n' . <<<"$version")
arch=$(dpkg --print-architecture)
# The oldest libc with every symbol that crispd needs.
libc=$(objdump -T "$bin/crispd" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
packaging/install.sh "$bin" "$stage" /usr
# postinst installs files that the administrator may have made, if they are missing.
if [ -e "$stage/etc/crictl.yaml" ]; then
	install -D -m 644 "$stage/etc/crictl.yaml" "$stage/usr/share/crisp/crictl.yaml"
	rm "$stage/etc/crictl.yaml"
fi
install -D -m 644 LICENSE "$stage/usr/share/doc/crisp/copyright"
install -m 644 apiserver/page/static/xterm/LICENSE "$stage/usr/share/doc/crisp/copyright.xterm.js"
install -m 644 CHANGELOG.md "$stage/usr/share/doc/crisp/"
"${GO:-go}" run ./packaging/sbom -version "$version" -static libseccomp-dev,libc6-dev \
	-npm apiserver/page/static/xterm/package.json \
	"$bin"/{crispd,crisp,crisp-executor,crisp-podinit} "$bin"/cni/* |
	install -D -m 644 /dev/stdin "$stage/usr/share/doc/crisp/sbom.cdx.json"
install -d "$stage/etc/crisp/pods"
mkdir "$stage/DEBIAN"
for script in postinst prerm postrm; do
	install -m 755 "packaging/debian/$script" "$stage/DEBIAN/"
done
cat >"$stage/DEBIAN/control" <<END
Package: crisp
Version: $version
Architecture: $arch
Maintainer: The crisp authors <crisp@localhost>
Section: admin
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$stage" | cut -f1)
Depends: libc6 (>= ${libc#GLIBC_}), libseccomp2 (>= 2.5), nftables
Recommends: systemd, libisal2
Suggests: criu, cri-tools, slirp4netns, uidmap
Homepage: https://github.com/crisp-cri/crisp
Description: container runtime for Kubernetes nodes
 It implements the Container Runtime Interface (CRI v1) for a kubelet,
 crictl or its own agent, which runs pods without a cluster. It needs no
 containerd, no pause container and no process per pod.
END
# zstd at a low level is fast to compress and to unpack; an old dpkg has only gzip.
deb=$bin/crisp_${version}_$arch.deb
rm -f "$bin"/crisp_*.deb
dpkg-deb --root-owner-group -Zzstd -z3 --build "$stage" "$deb" >/dev/null 2>&1 ||
	dpkg-deb --root-owner-group -Zgzip -z1 --build "$stage" "$deb" >/dev/null
echo "$deb"
