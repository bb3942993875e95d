#!/bin/bash
# The Debian package, from the programs of `make build` or those in OMNI_BIN: target/debian/omni_VERSION_ARCHITECTURE.deb
#
# Usage: systemd/deb.sh [VERSION]      called by `make deb`; default: the workspace's version
#
# dpkg-shlibdeps finds the linked libraries, so the package declares the C library it needs. Needs dpkg-dev, gzip and
# python3. DEBFULLNAME and DEBEMAIL name the maintainer, as for other Debian tools.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:-$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)}
license=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^license = "\(.*\)"/\1/p' Cargo.toml)
architecture=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-The Omni authors} <${DEBEMAIL:-omni@packages.invalid}>"
made=$(git log -1 --format=%ct)
programs=${OMNI_BIN:-target/release}
mkdir -p target/debian
work=$(mktemp -d target/debian/.build.XXXXXX)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir "$root"
chmod 755 "$root"

put() { # mode, source, target
    install -D -m "$1" "$2" "$root/$3"
}
for program in omni-scheduler omni-launcher omni-worker omni-weights omni-engine uv; do
    put 755 "$programs/$program" "usr/lib/omni/$program"
done
for library in libomni_cuda.so libomni_cuda_proxy.so; do
    put 644 "$programs/$library" "usr/lib/omni/$library"
done
put 755 "$programs/omnictl" usr/bin/omnictl
strip --strip-unneeded --remove-section=.comment "$root"/usr/lib/omni/omni-* "$root"/usr/lib/omni/*.so "$root/usr/bin/omnictl"
put 644 config/default-node.toml etc/omni/omni.toml
for unit in systemd/*.service systemd/*.socket systemd/*.slice; do
    put 644 "$unit" "usr/lib/systemd/system/${unit##*/}"
done
put 644 systemd/omni.preset usr/lib/systemd/system-preset/90-omni.preset
put 644 systemd/omni.sysusers usr/lib/sysusers.d/omni.conf
put 644 systemd/omni.tmpfiles usr/lib/tmpfiles.d/omni.conf
put 644 systemd/omni.catalog usr/lib/systemd/catalog/omni.catalog
for file in docs/*.md monitoring/alerts.yaml monitoring/dashboard.json; do
    put 644 "$file" "usr/share/doc/omni/${file##*/}"
done
SOURCE_DATE_EPOCH=$made systemd/sbom.py "$work/sbom.json"
put 644 "$work/sbom.json" usr/share/doc/omni/sbom.json
sed -e "s|@LICENSE@|$license|" -e "s|@YEAR@|$(date -u -d "@$made" +%Y)|" systemd/debian/copyright > "$work/copyright"
put 644 "$work/copyright" usr/share/doc/omni/copyright
printf 'omni (%s) stable; urgency=medium\n\n  * See the documentation in this folder.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(date -R -d "@$made")" | gzip -9n > "$work/changelog.gz"
put 644 "$work/changelog.gz" usr/share/doc/omni/changelog.gz
put 644 systemd/debian/lintian-overrides usr/share/lintian/overrides/omni

mkdir "$work/man"
systemd/man.py "$programs" "$version" "$(date -u -d "@$made" +%F)" "$work/man"
for page in "$work"/man/*; do
    gzip -9n "$page"
    put 644 "$page.gz" "usr/share/man/man${page##*.}/${page##*/}.gz"
done
complete() { # shell, target
    "$programs/omnictl" completion "$1" > "$work/completion"
    put 644 "$work/completion" "usr/share/$2"
}
complete bash bash-completion/completions/omnictl
complete zsh zsh/vendor-completions/_omnictl
complete fish fish/vendor_completions.d/omnictl.fish

# dpkg-shlibdeps wants the control file of a source package beside it.
mkdir "$work/debian"
printf 'Source: omni\n\nPackage: omni\nArchitecture: any\nDescription: omni\n' > "$work/debian/control"
linked=(usr/lib/omni/omni-scheduler usr/lib/omni/omni-launcher usr/lib/omni/uv usr/bin/omnictl)
libraries=$(cd "$work" && dpkg-shlibdeps -O "${linked[@]/#/root/}" | sed 's/^shlibs:Depends=//')

mkdir "$root/DEBIAN"
sed -e "s|@VERSION@|$version|" -e "s|@ARCHITECTURE@|$architecture|" -e "s|@LIBRARIES@|$libraries|" -e "s|@MAINTAINER@|$maintainer|" \
    -e "s|@SIZE@|$(du -k -s "$root" | cut -f1)|" systemd/debian/control > "$root/DEBIAN/control"
install -m 644 systemd/debian/conffiles "$root/DEBIAN/conffiles"
install -m 755 systemd/debian/{postinst,prerm,postrm} "$root/DEBIAN/"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums)
package=target/debian/omni_${version}_$architecture.deb
SOURCE_DATE_EPOCH=$made dpkg-deb --root-owner-group -Zxz -z3 --build "$root" "$package.new" >&2
mv "$package.new" "$package"
if command -v lintian >/dev/null; then
    lintian --allow-root --no-cfg --fail-on error,warning "$package" >&2
else
    echo "lintian is not installed: the package was not checked" >&2
fi
echo "$package"
